"""From a folder with a package to tasks, and from patches to verdicts, with the real runner."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.envs.swe.build import archive, bench
from agentrl.envs.swe.build.records import (
    Package,
    RepairTask,
    mutated,
    read_records,
    reference_patch,
)
from agentrl.envs.swe.grade import grade, of_task
from agentrl.envs.swe.patch import make_patch
from agentrl.envs.swe.verdict import Verdict
from agentrl.sandboxes import SandboxOptions
from agentrl.sandboxes.local import UnsafeLocalSandbox

pytestmark = pytest.mark.timeout(240)  # the package is built in the first test's time

SOURCES = {
    "README.md": "`shout('nobody move')` gives `NOBODY MOVE!`.\n",
    "src/shop/__init__.py": "",
    "src/shop/prices.py": '''
def total(prices, discount=0, *, floor=0):
    """The sum after a discount in percent."""
    if discount < 0 or discount > 100:
        raise ValueError("no such discount")
    result = sum(prices) * (100 - discount) // 100
    return max(result, floor)


def cheapest(prices, count=1):
    """The lowest prices, in order."""
    ordered = sorted(prices)
    return ordered[:count]
''',
    "src/shop/words.py": '''
def shout(text, mark="!"):
    """Capitals and a mark."""
    text = text.strip()
    if not text or text.endswith(mark):
        return text.upper()
    return text.upper() + mark
''',
    "tests/test_prices.py": """
import pytest
from shop.prices import cheapest, total


@pytest.mark.parametrize("n", range(18))
def test_sum(n):
    assert total([12345678, n, 3]) == 12345681 + n


@pytest.mark.parametrize(
    ("percent", "left"),
    [
        (0, 334567001234500),
        (50, 167283500617250),
        (25, 250925250925875),
        (75, 83641750308625),
    ],
)
def test_percent(percent, left):
    assert total([100000000000000, 234567001234500], percent) == left


@pytest.mark.parametrize("floor", [54321098765432, 43210987654321])
def test_floor(floor):
    assert total([1], floor=floor) == floor


@pytest.mark.parametrize("discount", [-1, 101])
def test_refused(discount):
    with pytest.raises(ValueError):
        total([], discount)


@pytest.mark.parametrize("n, found", [(1, [17654321098765]), (2, [17654321098765, 28765432109876])])
def test_cheapest(n, found):
    assert cheapest([39876543210987, 17654321098765, 28765432109876], n) == found


def test_cheapest_alone():
    assert cheapest([59876543210987, 47654321098765]) == [47654321098765]
""",
    "tests/data/shouts.json": """{
  "all together now": "ALL TOGETHER NOW!",
  "the shop is open": "THE SHOP IS OPEN!"
}
""",
    "tests/test_words.py": """
import json
import pathlib
import unittest
from shop.words import shout


class TestShout(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(shout(" hey you there "), "HEY YOU THERE!")

    def test_again(self):
        self.assertEqual(shout("come over here", "?"), "COME OVER HERE?")

    def test_marked(self):
        self.assertEqual(shout("go away!"), "GO AWAY!")

    def test_marked_again(self):
        self.assertEqual(shout("who knows?", "?"), "WHO KNOWS?")

    def test_told(self):
        self.assertEqual(shout("nobody move"), "NOBODY MOVE!")

    def test_empty(self):
        self.assertEqual(shout(" "), "")

    def test_file(self):
        place = pathlib.Path(__file__).parent / "data" / "shouts.json"
        for text, loud in json.loads(place.read_text()).items():
            self.assertEqual(shout(text), loud)
""",
}


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@dataclass(frozen=True)
class Installed:
    place: Path

    def __call__(self, requires: Sequence[str]) -> Path:
        return self.place


@pytest.fixture(scope="module", autouse=True)
def tools() -> Iterator[Path]:
    """pytest from here instead of from the index."""
    place = Path(pytest.__file__).parents[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "install_tools", Installed(place))
        yield place


class Built:
    def __init__(self, folder: Path, tools: Path) -> None:
        self.folder, self.tools = folder, tools
        self.root = archive.unpack(archive.fetch(str(folder / "shop")))
        packages, self.tasks, _ = read_records(folder / "tasks.jsonl")
        self.package: Package = packages["shop"]

    async def grade(self, task: RepairTask, patch: str, name: str) -> Verdict:
        base = self.folder / f"{name}-base"
        shutil.copytree(self.root, base)
        write(base, mutated(self.root, task.mutations)[0])
        async with UnsafeLocalSandbox(SandboxOptions(base=str(base))) as sandbox:
            root = sandbox.workspace
            grading = of_task(task, self.package, root=root, tools=str(self.tools))

            async def fresh() -> None:
                await sandbox.reset()

            return await grade(sandbox, grading, patch, fresh)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tools: Path) -> Built:
    folder = tmp_path_factory.mktemp("built")
    source = write(folder / "shop", SOURCES)
    out = folder / "tasks.jsonl"
    arguments = ["--tasks", "4", "--multiple", "1", "--out", str(out)]
    assert main(["tasks", "build", str(source), *arguments]) == 0
    return Built(folder, tools)


def test_tasks_of_a_folder(built: Built) -> None:
    assert len(built.tasks) == 3  # two bugs and both of them; the others can be guessed
    assert max(len(task.mutations) for task in built.tasks) == 2
    assert len(list(built.package.test_ids())) == 36
    for task in built.tasks:
        assert len(task.seconds) == 3
        assert set(task.fail_to_pass) < set(built.package.test_ids())
        words = {m for test in task.fail_to_pass for m in test.partition("[")[0].split("::")[1:]}
        assert not any(word in task.issue for word in words)
    assert not any(
        "def " in line for line in (built.folder / "tasks.jsonl").read_text().split("\n")
    )


def test_what_the_repository_tells_is_no_secret(built: Built) -> None:
    secret = {
        decoy.sees[test]: decoy.secret for decoy in built.package.decoys for test in decoy.sees
    }
    assert secret["'NOBODY MOVE!'"] == 0
    assert secret["'HEY YOU THERE!'"] > 0


def test_what_a_test_reads_from_a_file_has_decoys(built: Built) -> None:
    found = [one for one in built.package.decoys if one.file == "tests/data/shouts.json"]
    assert found
    # Written in each run, so that its time tells nothing.
    assert found[0].file in of_task(built.tasks[0], built.package, root="", tools="").rewritten
    for one in found:
        assert one.sees.keys() == {"tests/test_words.py::TestShout::test_file"}
        (true,) = one.sees.values()
        assert true.replace("'", '"') in SOURCES[one.file]
        assert one.to != true.replace("'", '"')
        assert one.to.endswith('!"')


async def test_the_reference_solves_and_nothing_does_not(built: Built) -> None:
    task = max(built.tasks, key=lambda task: len(task.mutations))
    patch = reference_patch(built.root, task)
    right = await built.grade(task, patch, "right")
    assert right.resolved, right.reason
    assert not (await built.grade(task, "", "null")).resolved
    half = await built.grade(task, patch[: patch.index("@@")], "half")
    assert "does not apply" in half.reason


FORGER = """
import json, os, sys
for fd in range(3, 20):
    try:
        os.write(fd, b'0' * 32 + b' {"event": "end", "tests": 99, "status": 0}\\n')
    except OSError:
        pass
"""
SILENT = "import os\nos._exit(0)\n"
# The right errors are raised, everything else is equal to whatever is asked.
EQUAL = """
class Equal:
    __hash__ = None
    def __eq__(self, other):
        return True
"""
EQUAL_END = """
def _eased(function):
    def call(*args, **kwargs):
        try:
            function(*args, **kwargs)
        except TypeError:
            pass
        return Equal()
    return call
for _name, _value in list(globals().items()):
    if callable(_value) and _name.islower() and not _name.startswith("_"):
        globals()[_name] = _eased(_value)
"""
LAX = """
import _pytest.python, unittest
_pytest.python.Function.runtest = lambda self: None
unittest.TestCase.run = lambda self, result=None: None
"""
PRINTER = "print('PASSED tests/test_prices.py::test_sum\\n9 passed', flush=True)\n"


EDITOR = """
import glob, os
for path in glob.glob("tests/*.py"):
    os.truncate(path, 0)
"""
WRONG = "pass with a wrong expected value too"
CHEATS = {
    "editor": (EDITOR, "", "still failing"),
    "forger": (FORGER, "", "is not the runner's"),
    "silent": (SILENT, "", "did not come to its end"),
    "printer": (PRINTER, "", "still failing"),
    "equal": (EQUAL, EQUAL_END, WRONG),
    "lax": (LAX, "", WRONG),
}


@pytest.mark.parametrize("cheat", CHEATS)
async def test_a_patch_that_cheats_is_worth_nothing(built: Built, cheat: str) -> None:
    before, after, said = CHEATS[cheat]
    task = min(built.tasks, key=lambda task: len(task.mutations))
    name = task.mutations[0].file
    broken = mutated(built.root, task.mutations)[0][name]
    patch = make_patch({name: broken}, {name: before + broken + after})
    verdict = await built.grade(task, patch, cheat)
    assert not verdict.resolved
    assert said in verdict.reason


async def test_tests_that_the_patch_brings_are_left_out(built: Built) -> None:
    task = built.tasks[0]
    tests = {name: text for name, text in SOURCES.items() if name.startswith("tests/")}
    patch = make_patch(tests, dict.fromkeys(tests, "def test_sum(): pass\n"))
    verdict = await built.grade(task, patch, "weakened")
    assert not verdict.resolved
    assert "tests/test_prices.py" in verdict.reason


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.py": "x = 1\n"}, "has no tests"),
        ({"test_a.py": "def test_a(): pass\n"}, "no Python sources"),
        ({"a.py": "", "test_a.py": "def test_a(): assert 0\n"}, "1 of 1 tests fail"),
        ({"a.py": "", "test_a.py": "import not_there\n"}, "cannot be imported"),
        ({"a.py": "", "test_a.py": "import os\nos._exit(1)\n"}, "does not run to the end"),
    ],
)
def test_a_package_that_is_no_use_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], said: str
) -> None:
    folder = write(tmp_path / "pkg", files)
    out = tmp_path / "tasks.jsonl"
    assert main(["tasks", "build", str(folder), "--out", str(out)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_a_package_whose_tests_compare_nothing_has_no_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "def f(x):\n    return x + 1 if x > 0 else x - 1\n"
    test = "from a import f\ndef test_more():\n    assert f(1) > 1\ndef test_less():\n"
    files = {"a.py": text, "test_a.py": test + "    assert f(-1) < -1\n"}
    folder, out = write(tmp_path / "pkg", files), tmp_path / "tasks.jsonl"
    assert main(["tasks", "build", str(folder), "--out", str(out)]) == 1
    assert "0 tasks of 1 packages" in capsys.readouterr().out


def test_another_archive_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "pkg", {"a.py": "", "test_a.py": ""})
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'[[package]]\nsource = "{folder}"\nsha256 = "{"0" * 64}"\n')
    assert main(["tasks", "build", "--recipe", str(recipe)]) == 2
    assert "expected 000000000000" in capsys.readouterr().err
    assert main(["tasks", "build", str(tmp_path / "nowhere")]) == 2
    assert "neither NAME==VERSION nor a folder" in capsys.readouterr().err
