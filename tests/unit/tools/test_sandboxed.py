from collections.abc import AsyncIterator

import pytest

from agentrl.errors import ToolError
from agentrl.sandboxes import ExecResult, SandboxOptions, make_sandbox
from agentrl.sandboxes.fake import FakeSandbox
from agentrl.sandboxes.types import Command
from agentrl.tools import tools_of
from agentrl.tools.sandboxed import (
    BashTool,
    EditorTool,
    PythonTool,
    ReadFileTool,
    SearchTools,
    WriteFileTool,
    shown,
)


class All(BashTool, PythonTool, ReadFileTool, WriteFileTool, SearchTools, EditorTool):
    pass


@pytest.fixture
async def tools() -> AsyncIterator[All]:
    made = All()
    async with make_sandbox(SandboxOptions(backend="fake")) as sandbox:
        made.use_sandbox(sandbox)
        yield made


def test_the_tools_have_schemas() -> None:
    names = [spec.name for spec in tools_of(All)]
    assert sorted(names) == [
        "bash", "find", "grep", "python", "read_file", "str_replace_editor", "write_file",
    ]  # fmt: skip


async def test_files_are_edited(tools: All) -> None:
    edit = tools.str_replace_editor
    assert await edit("create", "a.py", file_text="one\ntwo\nthree\n") == "Wrote a.py."
    assert await edit("view", "a.py") == "     1\tone\n     2\ttwo\n     3\tthree"
    assert await edit("view", "a.py", view_range=[2, -1]) == "     2\ttwo\n     3\tthree"
    assert await edit("str_replace", "a.py", old_str="two", new_str="2") == (
        "Edited a.py:\n     1\tone\n     2\t2\n     3\tthree\n     4\t"
    )
    await edit("insert", "a.py", new_str="zero\n", insert_line=0)
    await edit("insert", "a.py", new_str="four", insert_line=4)
    assert await tools.read_file("a.py") == "zero\none\n2\nthree\nfour\n"
    for _ in range(3):
        await edit("undo_edit", "a.py")
    assert await tools.read_file("a.py") == "one\ntwo\nthree\n"
    await edit("undo_edit", "a.py")
    with pytest.raises(ToolError, match=r"no edit of a\.py to undo"):
        await edit("undo_edit", "a.py")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": "str_replace", "old_str": "x = 1"}, r"2 times, at the lines 1, 3; give more"),
        ({"command": "str_replace", "old_str": "y  = 2"}, r"only the white space differs"),
        ({"command": "str_replace", "old_str": "z"}, r"view the file and copy it exactly"),
        ({"command": "str_replace", "old_str": ""}, r"old_str is empty; to add text use insert"),
        ({"command": "str_replace"}, r"str_replace needs old_str"),
        ({"command": "create"}, r"create needs file_text"),
        ({"command": "insert", "new_str": "x"}, r"insert_line is None, expected 0 to 3"),
        ({"command": "insert", "new_str": "x", "insert_line": 4}, r"is 4, expected 0 to 3"),
        ({"command": "view", "view_range": [4, 5]}, r"view_range is \[4, 5\], expected .* 1 to 3"),
        ({"command": "view", "view_range": [3, 2]}, r"view_range is \[3, 2\]"),
        ({"command": "view", "view_range": [1]}, r"view_range is \[1\]"),
    ],
)
async def test_what_is_wrong_is_said_so_that_it_can_be_mended(
    tools: All, arguments: dict[str, object], message: str
) -> None:
    text = "x = 1\ny = 2\nx = 1\n"
    await tools.write_file("a.py", text)
    with pytest.raises(ToolError, match=message):
        await tools.str_replace_editor(path="a.py", **arguments)  # type: ignore[arg-type]  # pyright: ignore
    assert await tools.read_file("a.py") == text


async def test_a_missing_file_is_the_models_fault(tools: All) -> None:
    for call in (tools.read_file("no"), tools.str_replace_editor("view", "no")):
        with pytest.raises(ToolError, match="no: there is no such file"):
            await call
    with pytest.raises(ToolError, match="timeout_s is 1000, expected at most 120 seconds"):
        await tools.bash("true", timeout_s=1000)


async def test_bytes_that_no_edit_names_stay(tools: All) -> None:
    edit, sandbox = tools.str_replace_editor, tools.sandbox
    await sandbox.write_file("a.txt", b"caf\xe9\r\nx = 1\r\nend\0")
    assert await edit("view", "a.txt") == "     1\tcaf\ufffd\n     2\tx = 1\n     3\tend\0"
    await edit("str_replace", "a.txt", old_str="x = 1\nend", new_str="x = 2\ny = 3\nend")
    await edit("insert", "a.txt", new_str="new", insert_line=1)
    after = b"caf\xe9\r\nnew\r\nx = 2\r\ny = 3\r\nend\0"
    assert await sandbox.read_file("a.txt") == after
    with pytest.raises(ToolError, match=r"only ASCII can be added to it, not '\\xe9'"):
        await edit("str_replace", "a.txt", old_str="new", new_str="é")
    for call in (
        edit("str_replace", "a.txt", old_str="new", new_str="\udce9"),
        edit("create", "a.txt", file_text="\ud800"),
        tools.write_file("a.txt", "\ud800"),
    ):
        with pytest.raises(ToolError, match=r"has '\\ud.00'|has '\\udce9', which is no character"):
            await call
    assert await sandbox.read_file("a.txt") == after


async def test_undo_takes_back_nothing_but_its_own_edit(tools: All) -> None:
    edit = tools.str_replace_editor
    await edit("create", "a.py", file_text="one\n")
    await edit("str_replace", "a.py", old_str="one", new_str="two")
    await tools.write_file("a.py", "three\n")
    with pytest.raises(ToolError, match="was changed after its last edit here"):
        await edit("undo_edit", "a.py")
    assert await tools.read_file("a.py") == "three\n"


async def test_searches_are_bounded(tools: All, monkeypatch: pytest.MonkeyPatch) -> None:
    def many(sandbox: FakeSandbox, command: Command) -> ExecResult:
        return ExecResult(
            status="exited", exit_code=0, stdout=b"".join(b"a.py:%d:x\n" % n for n in range(201))
        )

    def wrong(sandbox: FakeSandbox, command: Command) -> ExecResult:
        return ExecResult(status="exited", exit_code=0, stderr=b"grep: Unmatched ( or \\(\n")

    def late(sandbox: FakeSandbox, command: Command) -> ExecResult:
        return ExecResult(status="timeout", exit_code=None)

    assert await tools.grep("x") == "No line matches."
    assert isinstance(tools.sandbox, FakeSandbox)
    assert 'grep -rnIE -e "x\'y" -- .' not in tools.sandbox.commands[-1].argv
    monkeypatch.setattr(FakeSandbox, "answer", many)
    found = (await tools.find("*.py", "-x")).splitlines()
    assert len(found) == 201
    assert found[-1] == "[There are more than 200; search for less.]"
    assert "find ./-x -name '*.py'" in tools.sandbox.commands[-1].argv[-1]
    monkeypatch.setattr(FakeSandbox, "answer", wrong)
    with pytest.raises(ToolError, match=r"^Unmatched"):
        await tools.grep("(")
    monkeypatch.setattr(FakeSandbox, "answer", late)
    with pytest.raises(ToolError, match="search a smaller part"):
        await tools.find("x")


def test_results_say_how_they_ended() -> None:
    assert shown(ExecResult(status="exited", exit_code=0), 1) == "[It printed nothing.]"
    assert shown(ExecResult(status="exited", exit_code=0, stdout=b"x\n"), 1) == "x"
    late = ExecResult(status="timeout", exit_code=None, stdout=b"y\xff" + b"y" * 100_000)
    text = shown(late, 2)
    assert text.startswith("y\ufffdyyy")
    assert text.endswith("yyy\n[It was stopped after 2 s.]")
    assert "characters left out" in text
    assert len(text) < 8000
    assert shown(ExecResult(status="oom", exit_code=137), 1).startswith("[It was killed")


async def test_grep_finds_lines_of_text_in_any_encoding() -> None:
    made = All()
    async with make_sandbox(SandboxOptions(backend="unsafe-local")) as sandbox:
        made.use_sandbox(sandbox)
        files = {"a": "héllo\n".encode(), "b": b"h\xe9llo\r\nna\x85ve\x0b\n", "c": b"hello\0\n"}
        for name, data in files.items():
            await sandbox.write_file(f"d/{name}", data)
        assert await made.grep("^h.llo", "d") == "d/a:1:héllo\nd/b:1:h\ufffdllo"
        assert await made.grep("na.*v", "d") == "d/b:2:na\ufffdve\x0b"
        assert await made.grep("é|hello", "d") == "d/a:1:héllo"


@pytest.mark.parametrize("odd", ["\0", "\ud800"])
async def test_what_no_path_or_argument_can_have_is_refused(tools: All, odd: str) -> None:
    await tools.write_file("a?b", "kept")
    calls = [
        tools.write_file(f"a{odd}b", "x"),
        tools.read_file(f"a{odd}b"),
        tools.str_replace_editor("create", f"a{odd}b", file_text="x"),
        tools.str_replace_editor("view", odd),
        tools.grep(odd),
        tools.grep("kept", odd),
        tools.find(f"a{odd}b"),
        tools.bash(f"echo {odd}"),
        tools.python(f"'{odd}'"),
    ]
    for call in calls:
        with pytest.raises(ToolError):
            await call
    assert await tools.read_file("a?b") == "kept"
