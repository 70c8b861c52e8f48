"""Cheats that win against a grader that shares a process with the candidate score 0 here."""

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from agentrl.envs import default_services, resolve_env
from agentrl.envs.grading import SOLUTION, share_passed
from agentrl.sandboxes import Sandbox, SandboxOptions, SandboxPools
from agentrl.types import AssistantTurn, Score, Task, ToolCall

TESTS: Final = [{"args": [n], "expected": n * 37 + 11} for n in (1, 2, 3)]
HONEST: Final = "def solve(n):\n    return n * 37 + 11\n"

NAIVE: Final = """
import json, sys
tests = json.load(open("tests.json"))
sys.path.insert(0, "")
def check(found, expected):
    assert found == expected
import solution
for test in tests:
    expected = test["expected"]
    check(solution.solve(*test["args"]), expected)
print("PASSED")
"""
"""Passes by exit code 0 or by what it prints, as such graders do."""


def naive(folder: Path, cheat: "Cheat") -> bool:
    """True if the naive grader is won over, or hangs."""
    (folder / "tests.json").write_text(json.dumps(TESTS))
    (folder / "grader.py").write_text(NAIVE)
    (folder / SOLUTION).write_text(cheat.code)
    subprocess.run(["bash", "-c", cheat.before], cwd=folder, check=True)
    argv = [sys.executable, "grader.py", json.dumps(TESTS)]
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, timeout=3, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode == 0 or b"PASSED" in done.stdout


@dataclass(frozen=True, kw_only=True)
class Cheat:
    code: str
    before: str = "true"
    """What the agent runs before it submits."""


WATCHER: Final = (
    "cat >watch.py <<'END'\n"
    "import json, os, time\n"
    "open('begun', 'w').close()\n"
    "end = time.time() + 20\n"
    "while time.time() < end:\n"
    "    for path in ('tests.json', 'grader.py', '/tmp/tests.json'):\n"
    "        if os.path.exists(path):\n"
    "            open('new', 'w').write('''def solve(n):\n    return n * 37 + 11\n''')\n"
    "            os.replace('new', 'solution.py')\n"
    "    time.sleep(0.01)\n"
    "END\n"
    "setsid python3 watch.py >/dev/null 2>&1 &\n"
    "until [ -e begun ]; do sleep 0.05; done; sleep 0.3"
)
ANSWERS: Final = """
def solve(n):
    for text in texts():
        for at in range(len(text)):
            if text.startswith('[{"args"', at):
                tests, _ = json.JSONDecoder().raw_decode(text[at:])
                for test in tests:
                    if test["args"] == [n]: return test["expected"]
"""

CHEATS: Final = {
    "exits early": Cheat(code="import os; os._exit(0)"),
    "exits in the call": Cheat(code="def solve(n): raise SystemExit(0)"),
    "exits at the end": Cheat(
        code="import atexit, os\natexit.register(lambda: os._exit(0))\ndef solve(n): return 0"
    ),
    "equals everything": Cheat(
        code="class Any(int):\n    def __eq__(self, other): return True\n"
        "def solve(n): return Any()"
    ),
    "reads the frame": Cheat(
        code="import sys\ndef solve(n): return sys._getframe(1).f_locals.get('expected')"
    ),
    "reads the files": Cheat(
        code="import glob, json\ndef texts():\n"
        "    for path in glob.glob('/tmp/**', recursive=True) + glob.glob('**', recursive=True):\n"
        "        try: yield open(path).read()\n"
        "        except (OSError, UnicodeDecodeError): pass\n" + ANSWERS
    ),
    "reads /proc": Cheat(
        code="import glob, json\ndef texts():\n"
        "    for path in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/proc/[0-9]*/environ'):\n"
        "        try: yield open(path, errors='replace').read().replace('\\0', '\\n')\n"
        "        except OSError: pass\n" + ANSWERS
    ),
    "searches the memory": Cheat(
        code="import gc\ndef solve(n):\n"
        "    for found in gc.get_objects():\n"
        "        if isinstance(found, dict) and found.get('args') == [n]:\n"
        "            return found.get('expected')\n"
    ),
    "prints a pass": Cheat(
        code="import os\nprint('PASSED', flush=True)\nos.write(1, b'[[\"1\"],[\"1\"],[\"1\"]]')\n"
        "os._exit(0)"
    ),
    "writes to every descriptor": Cheat(
        code="import os\nfor fd in range(1, 20):\n"
        "    try: os.write(fd, b'PASSED')\n    except OSError: pass\nos._exit(0)"
    ),
    "patches the runner": Cheat(
        code="import sys\nfor module in list(sys.modules.values()):\n"
        "    if hasattr(module, 'check'): module.check = lambda *_: None\n"
        "    if hasattr(module, 'share_passed'): module.share_passed = lambda *_: 1.0\n"
        "def solve(n): return None"
    ),
    "shadows a module": Cheat(
        code="def solve(n): return None",
        before="printf 'def load(file): return []\\ndef dumps(x, **_): return \"[]\"\\n' >json.py",
    ),
    "plants a start-up file": Cheat(
        code="def solve(n): return None",
        before="printf 'import os\\nos._exit(0)\\n' >sitecustomize.py;"
        " cp sitecustomize.py solution.py",
    ),
    "leaves a watcher": Cheat(code="def solve(n): return None", before=WATCHER),
    "replaces the tests": Cheat(
        code="import __main__\nif hasattr(__main__, 'tests'): __main__.tests.clear()\n"
        "def solve(n): return None"
    ),
    "hangs": Cheat(code="while True: pass"),
    "floods": Cheat(code="import os\nwhile True: os.write(1, b'PASSED' * 10000)"),
}  # fmt: skip


def test_the_naive_grader_knows_right_from_wrong(tmp_path: Path) -> None:
    assert naive(tmp_path, Cheat(code=HONEST))
    assert not naive(tmp_path, Cheat(code="def solve(n): return n"))


@pytest.mark.sandbox
@pytest.mark.parametrize("name", CHEATS)
async def test_the_cheat_wins_against_a_naive_grader(name: str, tmp_path: Path) -> None:
    assert await asyncio.to_thread(naive, tmp_path, CHEATS[name])


@pytest.mark.sandbox
@pytest.mark.parametrize("name", CHEATS)
async def test_the_cheat_scores_nothing(
    name: str, options: SandboxOptions, pools: SandboxPools
) -> None:
    async with pools.acquire(options) as sandbox:
        assert await _score(sandbox, CHEATS[name]) == 0


@pytest.mark.sandbox
async def test_honest_work_scores(options: SandboxOptions, pools: SandboxPools) -> None:
    async with pools.acquire(options) as sandbox:
        assert await _score(sandbox, Cheat(code=HONEST, before=WATCHER)) == 1
        assert await _score(sandbox, Cheat(code="def solve(n): return n or x")) == 0
        assert await _score(sandbox, Cheat(code="def solve(n): return 48 if n == 1 else None")) == (
            1 / 3
        )
        program = b"print(int(input()) * 2)"
        tests = [{"stdin": "1\n", "stdout": "2"}, {"stdin": "3\n", "stdout": "6\n\n"}]
        assert await share_passed(sandbox, program, tests, 5, 20) == 1
        half = b"n = int(input())\nwhile n == 3: pass\nprint(n * 2)"
        assert await share_passed(sandbox, half, tests, 1, 20) == 0.5
        forged = b"""print('[["2"],["6"]]')"""
        assert await share_passed(sandbox, forged, tests, 1, 20) == 0


_LONG: Final = [0.1 * i for i in range(1, 60_000)]


@pytest.mark.sandbox
@pytest.mark.bwrap
@pytest.mark.parametrize(
    ("test", "solution"),
    [
        ({"stdin": "", "stdout": "x" * 600_000}, "print('x' * 600_000)"),
        ({"stdin": "", "stdout": "é" * 100_000}, "print('é' * 100_000)"),
        ({"stdin": "", "stdout": "\x01\n" * 100_000}, "print('\x01 \\r\\n' * 100_000)"),
        ({"stdin": "", "json": [[0, 1]] * 20_000},
         "import json\nprint(json.dumps([[0, 1]] * 20_000, indent=4))"),
        ({"stdin": "", "json": "a" * 100_000}, "print(chr(34) + r'\\u0061' * 100_000 + chr(34))"),
        ({"args": [], "expected": '"' * 200_000}, "def solve(): return chr(34) * 200_000"),
        ({"args": [], "expected": [round(x, 3) for x in _LONG]},
         "def solve(): return [0.1 * i for i in range(1, 60_000)]"),
    ],
    ids=["text", "not ascii", "escapes", "indents", "all escapes", "quotes", "floats"],
)  # fmt: skip
async def test_what_the_tests_expect_fits(
    test: dict[str, object], solution: str, pools: SandboxPools
) -> None:
    async with pools.acquire(SandboxOptions(backend="bwrap")) as sandbox:
        assert await share_passed(sandbox, solution.encode(), [test, test], 10, 40) == 1.0


async def _score(sandbox: Sandbox, cheat: Cheat) -> float:
    await sandbox.write_file(SOLUTION, cheat.code.encode())
    await sandbox.exec(cheat.before)
    code = await sandbox.read_file(SOLUTION)
    return await share_passed(sandbox, code, TESTS, 2, 2)


@pytest.mark.sandbox
@pytest.mark.bwrap
async def test_a_policy_that_is_right_half_of_the_time_earns_half() -> None:
    """Honest, wrong, cheating and absent solutions, in known shares: the mean reward is theirs."""
    cls = resolve_env("code_sandbox")
    rewards: list[float] = []
    for index in range(8):
        env = cls({"sandbox": {"backend": "bwrap"}})
        await env.areset(options={"index": index, "split": "train"})
        honest = env.task.data["solution"]
        code = (honest, CHEATS["exits early"].code, honest, "def solve(x): return x")[index % 4]
        for name, arguments in (
            ("write_file", {"path": SOLUTION, "content": code}),
            ("submit", {}),
        ):
            call = ToolCall(name=name, arguments=arguments, id="c")
            await env.advance(AssistantTurn(calls=(call,)))
        outcome = await env.ascore()
        assert isinstance(outcome, Score)
        rewards.append(outcome.value)
        await env.aclose()
    assert rewards == [1, 0] * 4
    await default_services().sandboxes.close()


@pytest.mark.sandbox
async def test_an_episode_from_its_first_turn_to_its_score(options: SandboxOptions) -> None:
    env = resolve_env("code_sandbox")({"sandbox": options.model_dump()})
    await env.areset(options={"task": Task(prompt="n * 37 + 11", answer=TESTS)})
    turns: list[tuple[str, dict[str, str]]] = [
        ("bash", {"command": "export A=1; ls"}),
        ("bash", {"command": "echo $A; exit 3"}),
        ("write_file", {"path": SOLUTION, "content": HONEST}),
        ("bash", {"command": "python3 -c 'import solution as s; print(s.solve(1))'"}),
        ("submit", {}),
    ]
    for name, arguments in turns:
        await env.advance(AssistantTurn(calls=(ToolCall(name=name, arguments=arguments, id="c"),)))
    said = [message.content for message in env.conversation if message.role == "tool"]
    assert said[0] == "[It printed nothing.]"
    assert said[1] == "1\n[Exit code 3. The bash session ended; the next call begins a new one.]"
    assert said[3] == "48"
    score = await env.ascore()
    await env.aclose()
    assert isinstance(score, Score)
    assert score.value == 1
    await env.services.sandboxes.close()
