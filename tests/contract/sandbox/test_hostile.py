"""Nothing that a policy does makes its own episode Invalid: what it causes is scored."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agentrl.envs.code_sandbox import CodeSandbox
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.envs.toolenv import ToolEnv
from agentrl.sandboxes import SandboxOptions, make_sandbox
from agentrl.sandboxes.bwrap import CANNOT_FORK
from agentrl.types import AssistantTurn, Score, ToolCall
from tests.contract.sandbox import shop

pytestmark = [pytest.mark.sandbox, pytest.mark.bwrap, pytest.mark.timeout(300)]

_BYTES: Final = st.binary(min_size=1, max_size=255).filter(
    lambda name: not set(name) & {0, ord("/")} and name not in (b".", b"..")
)
_NAMES: Final = _BYTES | st.sampled_from(
    [b"\xff", b"a b", b'"', b"\\377", b"a\nb", b"a\r", b"-rf", b"x b", b".git", b".GIT", b"git~1",
     b"n" * 255, "\u00e4".encode() * 127, b"conftest.py", b"tests", b".gitattributes"]
)  # fmt: skip
_FOLDERS: Final = st.sampled_from(["", "src/", "src/shop/", "tests/", "new/deep/er/", "/tmp/"])
_MAKES: Final = st.sampled_from(
    [
        "touch {}", "mkdir {}", "mkfifo {}", "ln -s / {}", "ln -s loop {}", "ln setup.cfg {}",
        "echo x >{}; chmod 000 {}", "mkdir {}; touch {}/x; chmod 000 {}", "chmod 7777 . ; cp $0 {}",
        "printf '\\0\\r\\xff' >{}", "head -c 300000 /dev/urandom >{}", "rm -rf {}",
        "python3 -c 'import socket,sys; socket.socket(1).bind(sys.argv[1])' {}",
        "(exec 9>>{}; flock -x 9; setsid sleep 99 >/dev/null 2>&1 &)", "truncate -s 200G {}",
    ]
)  # fmt: skip
_DEEP: Final = 'python3 -c \'import os\nfor _ in range({}): os.mkdir("{}"); os.chdir("{}")\''
_FORKS: Final = """python3 -c 'import os
if os.fork() == 0:
    os.setsid()
    while True:
        try: os.fork() or os._exit(0)
        except OSError: pass' &"""
_SCRIPTS: Final = st.sampled_from(
    [
        "rm -rf .git; echo gitdir: /nowhere >.git", "touch .git/index.lock .git/HEAD.lock",
        "head -c 99 /dev/urandom >.git/index", "rm -rf * .git", "chmod 000 .", "chmod 000 /tmp",
        "printf '[core]\\nfsmonitor=false\\nhooksPath=/x' >.git/config; rm -rf .git/objects",
        "printf '* -diff filter=x working-tree-encoding=UTF-16 text eol=crlf\\n' >.gitattributes",
        "git init -q sub; git -c protocol.file.allow=always submodule add ./sub s",
        "mkdir objects refs; touch objects/x refs/x; echo ref: refs/heads/x >HEAD; touch config",
        _DEEP.format(1200, "d", "d"), _DEEP.format(40, "d" * 255, "d" * 255),
        _DEEP.format(3000, "e" * 20, "e" * 20),
        "head -c 400000000 /dev/zero >full", "head -c 250000000 /dev/zero >/tmp/full",
        "seq 60000 | xargs touch", "mkdir m; cd m; seq 3000 | xargs touch",
        "for i in $(seq 300); do sleep 99 >/dev/null 2>&1 & done", _FORKS,
        "ulimit -n 3 -u 1 -f 0; exec 1>&- 2>&-", "kill -9 $$", "kill -9 -1", "exit 3",
        "echo 1000 >/proc/1/oom_score_adj; python3 -c 'x = b\"1\" * (2 << 30)'",
        "prlimit --pid 1 --nofile=0 --as=0 --nproc=0; kill -STOP 1",
        "rm -r tests; echo x >tests", "rm -r src; ln -s /mnt/tools src", "mv src a; ln -s a src",
        "yes | head -c 3000000", "head -c 100000 /dev/urandom", "while :; do :; done",
    ]
)  # fmt: skip
_PATHS: Final = st.text(max_size=30) | st.sampled_from(
    ["", ".", "/", "..", "\0", "\ud800", "~", "-", "x" * 300, "y/" * 3000, "z" * 200000, "a\n",
     "/dev/zero", "/proc/self/mem", "/proc/1/environ", "/mnt/tools", "loop", "src", "src/shop",
     ".git", "/tmp", "solution.py", "src/shop/prices.py", "nothing/at/all"]
)  # fmt: skip
_TEXTS: Final = st.text(max_size=30) | st.sampled_from(
    ["", "\0", "\ud800x", "(", "[", "\\", "*" * 99, "result", "\n", "%s", "'" * 60000, "\r\n"]
)
_COMMANDS: Final = ("view", "create", "str_replace", "insert", "undo_edit")


def _call(name: str, /, **arguments: st.SearchStrategy[object]) -> st.SearchStrategy[ToolCall]:
    def called(values: dict[str, Any]) -> ToolCall:
        return ToolCall(name=name, arguments=values, id="call_0")

    return st.builds(called, st.fixed_dictionaries(arguments))


def _make(line: str, folder: str, name: bytes) -> str:
    quoted = "".join(f"\\{byte:03o}" for byte in name)
    place = folder or "./"
    return f"mkdir -p {place}; n={place}$'{quoted}'; " + line.replace("{}", '"$n"')


_MADE: Final = st.builds(_make, _MAKES, _FOLDERS, _NAMES)
_BASH: Final = _call("bash", command=_MADE | _SCRIPTS, timeout_s=st.just(1))
_CALLS: Final = st.one_of(
    _BASH,
    _call("write_file", path=_PATHS, content=_TEXTS),
    _call("read_file", path=_PATHS),
    _call("grep", pattern=_TEXTS, path=_PATHS),
    _call("find", name=_TEXTS, path=_PATHS),
    _call("python", code=_TEXTS | st.just("while True: pass"), timeout_s=st.just(1)),
    _call(
        "str_replace_editor",
        command=st.sampled_from(_COMMANDS),
        path=_PATHS,
        file_text=_TEXTS,
        old_str=_TEXTS,
        new_str=_TEXTS,
        insert_line=st.integers(-2, 1 << 70),
        view_range=st.lists(st.integers(-(1 << 70), 1 << 70), max_size=3),
    ),
)
_EPISODES: Final = st.lists(_BASH | _CALLS, min_size=1, max_size=4)
_REPAIR: Final = ToolCall(
    name="bash", arguments={"command": shop.put("src/shop/prices.py", shop.PRICES)}, id="call_0"
)
_SOLUTION: Final = ToolCall(
    name="write_file", arguments={"path": "solution.py", "content": "print(1)\n"}, id="call_0"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        shop.use_own_pytest(patch)
        yield shop.tasks_file(tmp_path_factory.mktemp("shop"))


def _require_scored(env: ToolEnv, calls: Sequence[ToolCall]) -> Score:
    async def play() -> object:
        await env.areset(seed=0)
        for call in calls:
            await env.advance(AssistantTurn(calls=(call,)))
        await env.advance(shop.call("submit"))
        outcome = await env.ascore()
        await env.aclose()
        await env.services.sandboxes.close()
        return outcome

    outcome = asyncio.run(play())
    assert isinstance(outcome, Score), outcome
    outcome.reason.encode()
    return outcome


def _check(file: Path, num_examples: int) -> None:
    options = SandboxOptions(backend="bwrap")

    # Shrinking would play hundreds of episodes.
    @settings(
        max_examples=num_examples, deadline=None, phases=(Phase.generate,),
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(_EPISODES, st.booleans())
    def scored(calls: list[ToolCall], is_swe: bool) -> None:
        env: ToolEnv = CodeSandbox(CodeSandbox.Config(sandbox=options))
        if is_swe:
            env = SweSandbox(SweSandbox.Config(tasks=str(file), sandbox=options))
        _require_scored(env, [_REPAIR if is_swe else _SOLUTION, *calls])

    scored()


def test_memory_that_ran_out_before_does_not_spoil_a_repair(file: Path) -> None:
    config = SweSandbox.Config(tasks=str(file), sandbox=SandboxOptions(backend="bwrap"))
    fill = "python3 -c 'x = b\"1\" * (2 << 30)'"
    call = ToolCall(name="bash", arguments={"command": fill}, id="call_0")
    assert _require_scored(SweSandbox(config), [_REPAIR, call]).value == 1


@pytest.mark.nightly
async def test_a_storm_of_processes_is_its_authors_trouble() -> None:
    """A command that finds no room has a result, whether there is room a moment later or not."""
    storm = """import os, time
for _ in range(8):
    if os.fork() == 0:
        while True:
            try:
                for _ in range(10):
                    if os.fork() == 0:
                        time.sleep(0.004); os._exit(0)
            except OSError: pass
            try:
                while os.waitpid(-1, os.WNOHANG)[0]: pass
            except OSError: pass"""
    async with make_sandbox(SandboxOptions(backend="bwrap")) as sandbox:
        python = await sandbox.session("python")
        await python.run(storm, timeout_s=5)
        codes = {(await sandbox.exec(["true"])).exit_code for _ in range(40)}
        assert codes <= {0, CANNOT_FORK}


def test_what_a_policy_leaves_is_scored(file: Path) -> None:
    _check(file, 3)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_what_many_policies_leave_is_scored(file: Path) -> None:
    _check(file, 200)
