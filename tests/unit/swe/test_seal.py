import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.swe.patch import make_patch, touched
from agentrl.envs.swe.seal import Seal, without_sealed

GOOD = make_patch({"src/a.py": "x = 1\n"}, {"src/a.py": "x = 2\n"})
SEAL = Seal(["tests/test_a.py", "src/pkg/tests/test_b.py"], ["src/a.py"])


def part(name: str, mode: str = "100644") -> str:
    return (
        f"diff --git a/{name} b/{name}\nnew file mode {mode}\n--- /dev/null\n+++ b/{name}\n"
        "@@ -0,0 +1 @@\n+x\n"
    )


@pytest.mark.parametrize(
    "bad",
    [
        part("tests/test_a.py"),
        part("src/pkg/tests/data.json"),
        part("tests/unit/helpers.py"),
        part("tests/__init__.py"),
        part("conftest.py"),
        part("src/pkg/conftest.py"),
        part("pytest.ini"),
        part("setup.cfg"),
        part("sitecustomize.py"),
        part("src/evil.pth"),
        part("src/link.py", "120000"),
        part("src/../tests/test_a.py"),
        part("/etc/passwd"),
        part(".git/hooks/post-checkout"),
        "diff --git a/src/a.py b/tests/test_a.py\nsimilarity index 100%\n"
        "rename from src/a.py\nrename to tests/test_a.py\n",
        "diff --git a/tests/test_a.py b/src/a.py\nsimilarity index 100%\n"
        "rename from tests/test_a.py\nrename to src/a.py\n",
        "diff --git a/tests/test_a.py b/tests/test_a.py\ndeleted file mode 100644\n"
        "--- a/tests/test_a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
        'diff --git "a/tests/test_\\303\\244.py" "b/tests/test_\\303\\244.py"\n'
        '--- "a/tests/test_\\303\\244.py"\n+++ "b/tests/test_\\303\\244.py"\n@@ -1 +1 @@\n-x\n+y\n',
        # The header says one thing, the file lines another.
        "diff --git a/src/a.py b/src/a.py\n--- a/src/a.py\n+++ b/tests/test_a.py\n@@ -1 +1 @@\n"
        "-x\n+y\n",
        "diff --git a/src/a.py b/src/a.py\nold mode 100644\nnew mode 120000\n",
    ],
)
def test_what_decides_is_left_out(bad: str) -> None:
    for patch in (bad + GOOD, GOOD + bad):
        kept, left_out = without_sealed(patch, SEAL)
        assert kept == GOOD
        assert left_out


def test_an_honest_patch_is_kept_whole() -> None:
    patch = GOOD + part("src/new module.py") + part("docs/testing.md")
    assert without_sealed(patch, SEAL) == (patch, ())


def test_a_change_within_a_file_is_no_header() -> None:
    text = "".join(f"{c}-- a/tests/test_x.py\n" for c in "-+")
    patch = f"diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n{text}"
    assert without_sealed(patch, SEAL) == (patch, ())


def test_files_of_a_test_patch_are_sealed_whatever_their_names() -> None:
    assert without_sealed(GOOD, Seal(["src/a.py"])) == ("", ("src/a.py",))


def test_text_before_the_first_file_is_left_out() -> None:
    assert without_sealed("--- a/tests/test_a.py\n+++ b/tests/test_a.py\n" + GOOD, SEAL)[0] == GOOD


@pytest.mark.parametrize(
    ("tests", "sources", "file", "is_sealed"),
    [
        # A folder's or a file's name alone makes no test of it.
        (["tests/test_a.py"], ["pkg/a.py"], "pkg/test/client.py", False),
        (["tests/test_a.py"], ["pkg/testing/tools.py"], "pkg/testing/tools.py", False),
        (["tests/test_a.py"], ["pkg/testing/tools.py"], "pkg/testing/new.py", False),
        (["pkg/testing/tests/test_a.py"], ["pkg/testing/a.py"], "pkg/testing/b.py", False),
        (["pkg/testing/tests/test_a.py"], ["pkg/testing/a.py"], "pkg/testing/tests/b.py", True),
        (["pkg/test/test_a.py"], ["pkg/test/client.py"], "pkg/test/client.py", False),
        (["pkg/test/test_a.py"], ["pkg/test/client.py"], "pkg/test/test_a.py", True),
        (["pkg/test/test_a.py"], ["pkg/test/client.py"], "pkg/test/data/a.json", True),
        (["tests/test_a.py"], ["pkg/a.py"], "pkg/test_helpers.py", False),
        (["tests/test_a.py"], ["pkg/a.py"], "test_helpers.py", False),
        (["tests/test_a.py"], ["pkg/a.py"], "pkg/latest.py", False),
        # Names that say nothing do not make a source of a test.
        (["checks/a.py"], ["pkg/a.py"], "checks/a.py", True),
        (["checks/deep/a.py"], ["pkg/a.py"], "checks/helpers.py", True),
        (["checks/a.py"], [], "checks/expected.json", True),
        (["pkg/sub/test_a.py"], ["pkg/a.py"], "pkg/sub/a.py", False),
        (["pkg/sub/test_a.py"], ["pkg/a.py"], "pkg/sub/a.txt", True),
        (["pkg/sub/test_a.py"], ["pkg/a.py"], "pkg/sub/__init__.py", True),
        (["pkg/sub/test_a.py"], ["pkg/a.py"], "pkg/__init__.py", False),
        (["pkg/sub/test_a.py"], ["pkg/a.py"], "pkg/conftest.py", True),
        (["test_a.py"], ["a.py"], "expected.json", True),
        (["test_a.py"], ["a.py"], "data/a.json", False),
        # Settings decide only where the runner finds them.
        (["tests/test_a.py"], ["pkg/a.py"], "pkg/templates/setup.cfg", False),
        (["tests/test_a.py"], ["pkg/a.py"], "setup.cfg", True),
        (["tests/test_a.py"], ["setup.cfg"], "setup.cfg", True),
        (["tests/test_a.py"], ["pkg/a.py"], "pkg/sitecustomize.py", True),
    ],
)
def test_the_tasks_lists_say_what_is_a_test(
    tests: list[str], sources: list[str], file: str, is_sealed: bool
) -> None:
    assert Seal(tests, sources).holds(file) == is_sealed


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    return done.stdout.decode("utf-8", "surrogateescape")


_NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda name: not set(name) & {0, ord("/")} and name not in (b".", b"..", b".git")
)


@settings(max_examples=15, deadline=None)
@given(
    st.sets(
        _NAMES
        | st.sampled_from([b"a b/b", b"x b b", b"\\377", b'"', b" ", b"\xff"]).filter(
            lambda name: b"/" not in name
        ),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_every_name_that_git_can_write_is_read(names: set[bytes], empty: bool) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for side in ("a", "b"):
            Path(scratch, side).mkdir()
        for name in names:
            (Path(scratch, "b") / os.fsdecode(name)).write_bytes(b"" if empty else b"x\n")
        patch = _git(Path(scratch), "diff", "--no-index", "--no-prefix", "--binary", "a", "b")
    wanted = {name.decode("utf-8", "surrogateescape") for name in names}
    assert touched(patch) == wanted
    assert without_sealed(patch, Seal(wanted))[0] == ""
    kept, left_out = without_sealed(patch, SEAL)
    assert (kept, left_out) == (patch, ())


def test_touched() -> None:
    assert touched(GOOD + part("b/c.py")) == {"src/a.py", "b/c.py"}


@pytest.mark.parametrize(
    "header",
    [
        "diff --git a/tests/conftest.py a/tests/conftest.py\ndeleted file mode 100644\n",
        "diff --git b/conftest.py b/conftest.py\nnew file mode 100644\n",
    ],
)
def test_a_new_or_deleted_file_is_named_once(header: str) -> None:
    kept, left_out = without_sealed(header + "index e69de29..0000000\n", SEAL)
    assert (kept, [name.rpartition("/")[2] for name in left_out]) == ("", ["conftest.py"])
    kept, _ = without_sealed(header.replace("conftest", "shop").replace("tests/", ""), SEAL)
    assert kept
