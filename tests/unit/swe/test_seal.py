import pytest

from agentrl.envs.swe.patch import make_patch, touched
from agentrl.envs.swe.seal import is_sealed, without_sealed

GOOD = make_patch({"src/a.py": "x = 1\n"}, {"src/a.py": "x = 2\n"})


def part(name: str, mode: str = "100644") -> str:
    return (
        f"diff --git a/{name} b/{name}\nnew file mode {mode}\n--- /dev/null\n+++ b/{name}\n"
        "@@ -0,0 +1 @@\n+x\n"
    )


@pytest.mark.parametrize(
    "bad",
    [
        part("tests/test_a.py"),
        part("pkg/tests/data.json"),
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
        kept, left_out = without_sealed(patch)
        assert kept == GOOD
        assert left_out


def test_an_honest_patch_is_kept_whole() -> None:
    patch = GOOD + part("src/new module.py") + part("docs/testing.md")
    assert without_sealed(patch) == (patch, ())


def test_a_change_within_a_file_is_no_header() -> None:
    text = "".join(f"{c}-- a/tests/test_x.py\n" for c in "-+")
    patch = f"diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n{text}"
    assert without_sealed(patch) == (patch, ())


def test_files_of_a_test_patch_are_sealed_whatever_their_names() -> None:
    assert without_sealed(GOOD, frozenset({"src/a.py"})) == ("", ("src/a.py",))


def test_text_before_the_first_file_is_left_out() -> None:
    assert without_sealed("--- a/tests/test_a.py\n+++ b/tests/test_a.py\n" + GOOD)[0] == GOOD


def test_sources_with_test_in_their_names_are_sources() -> None:
    assert not is_sealed("src/contest.py")
    assert not is_sealed("src/latest.py")


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
    kept, left_out = without_sealed(header + "index e69de29..0000000\n")
    assert (kept, [name.rpartition("/")[2] for name in left_out]) == ("", ["conftest.py"])
    kept, _ = without_sealed(header.replace("conftest", "shop").replace("tests/", ""))
    assert kept
