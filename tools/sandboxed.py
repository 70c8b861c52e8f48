"""Tools that work in a sandbox: inherit those that an environment offers.

    class MyEnv(BashTool, EditorTool, SandboxEnv): ...

What a command does wrong is shown to the model; when the sandbox itself fails, the episode is
invalid.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from agentrl.errors import ToolError
from agentrl.sandboxes import ExecResult, FileAccessError, Sandbox, Session
from agentrl.tools.declare import tool
from agentrl.tools.edits import (
    FileText,
    insert_lines,
    line_shown,
    replace_once,
    require_argument,
    require_text,
)
from agentrl.tools.runner import truncate_middle

_DEFAULT_S: Final = 20.0
_MOST_S: Final = 120.0
_MARGIN_S: Final = 30.0
"""More time than a command: to interrupt it, and to start its session."""
_MAX_EDIT_BYTES: Final = 1 << 20
_MAX_MATCHES: Final = 200
_SEARCH_S: Final = 20.0
_SHOWN_TOKENS: Final = 1500


class UsesSandbox:
    """The sandbox of the episode and the sessions in it; the environment's `setup` sets it."""

    sandbox: Sandbox
    _sessions: dict[str, Session]
    _edits: dict[str, list[tuple[bytes | None, bytes]]]
    """What files were before each edit, None if there was none, and after it."""

    def use_sandbox(self, sandbox: Sandbox) -> None:
        """Begin an episode with this sandbox."""
        self.sandbox = sandbox
        self._sessions = {}
        self._edits = {}

    async def _run_in_sandbox_session(
        self, kind: Literal["bash", "python"], code: str, timeout_s: float
    ) -> str:
        if not 0 < timeout_s <= _MOST_S:
            raise ToolError(f"timeout_s is {timeout_s:g}, expected at most {_MOST_S:g} seconds")
        require_argument(code, "the code")
        session = self._sessions.get(kind)
        if session is None:
            session = self._sessions[kind] = await self.sandbox.session(kind)
        result = await session.run(code, timeout_s=timeout_s)
        return shown(result, timeout_s, session)

    async def _read_sandbox_text_file(self, path: str) -> FileText:
        return FileText.read(await self.sandbox.read_file(path, max_bytes=_MAX_EDIT_BYTES))


def shown(result: ExecResult, timeout_s: float, session: Session | None = None) -> str:
    """A command's result as the model sees it: its output, and how it ended if that was not well.

    The output loses its middle, never the words about the end.
    """
    notes: list[str] = []
    if result.status == "timeout":
        notes.append(f"It was stopped after {timeout_s:g} s.")
    elif result.status == "oom":
        notes.append("It was killed: the memory was full.")
    elif result.exit_code:
        notes.append(f"Exit code {result.exit_code}.")
    if session is not None and session.began_anew:
        notes.append(f"The {session.kind} session had ended; this ran in a new one.")
    if session is not None and not session.is_running:
        notes.append(f"The {session.kind} session ended; the next call begins a new one.")
    text = truncate_middle(result.text(), _SHOWN_TOKENS).rstrip("\n")
    ends = f"[{' '.join(notes)}]" if notes else ""
    return "\n".join(part for part in (text, ends) if part) or "[It printed nothing.]"


class BashTool(UsesSandbox):
    """`bash`, in one shell for the whole episode."""

    @tool(timeout_s=_MOST_S + _MARGIN_S)
    async def bash(self, command: str, timeout_s: float = _DEFAULT_S) -> str:
        """Run a command in a shell that keeps its state.

        Args:
            command: it has no standard input.
            timeout_s: seconds until it is stopped.
        """
        return await self._run_in_sandbox_session("bash", command, timeout_s)


class PythonTool(UsesSandbox):
    """`python`, in one interpreter for the whole episode."""

    @tool(timeout_s=_MOST_S + _MARGIN_S)
    async def python(self, code: str, timeout_s: float = _DEFAULT_S) -> str:
        """Run Python code in an interpreter that keeps its state; a last expression is printed.

        Args:
            code: one or more lines.
            timeout_s: seconds until it is stopped.
        """
        return await self._run_in_sandbox_session("python", code, timeout_s)


class ReadFileTool(UsesSandbox):
    """`read_file`."""

    @tool
    async def read_file(self, path: str) -> str:
        """Read a text file.

        Args:
            path: the file; relative paths begin in the working folder.
        """
        return (await self._read_sandbox_text_file(path)).shown


class WriteFileTool(UsesSandbox):
    """`write_file`."""

    @tool
    async def write_file(self, path: str, content: str) -> str:
        """Write a text file.

        Args:
            path: the file; its folders are made.
            content: all of the file.
        """
        data = require_text(content, "content").encode()
        await self.sandbox.write_file(path, data, in_place=True)
        return f"Wrote {len(data)} bytes to {path}."


class SearchTools(UsesSandbox):
    """`grep` and `find`."""

    @tool
    async def grep(self, pattern: str, path: str = ".") -> str:
        """Search files for lines that match a regular expression; not files with NUL bytes.

        Args:
            pattern: an extended regular expression.
            path: a file, or a folder that is searched with all below it.
        """
        require_argument(pattern, "pattern")
        require_argument(path, "path")
        line = shlex.join(["grep", "-rnIE", "-e", pattern, "--", path])
        # By characters, then by bytes: the first leaves out files that are not in UTF-8.
        return await self._run_search_commands((line, f"LC_ALL=C {line}"), "No line matches.")

    @tool
    async def find(self, name: str, path: str = ".") -> str:
        """Find files and folders by name.

        Args:
            name: a pattern such as "*.py".
            path: the folder that is searched with all below it.
        """
        require_argument(name, "name")
        require_argument(path, "path")
        argv = ["find", f"./{path}" if path.startswith("-") else path, "-name", name]
        return await self._run_search_commands((shlex.join(argv),), "Nothing has such a name.")

    async def _run_search_commands(self, searches: Sequence[str], nothing: str) -> str:
        line = "; ".join(f"{search} | head -n {_MAX_MATCHES + 1}" for search in searches)
        result = await self.sandbox.exec(line, timeout_s=_SEARCH_S)
        if result.status == "timeout":
            raise ToolError(f"the search did not end within {_SEARCH_S:g} s; search a smaller part")
        found = result.stdout.decode(errors="replace").removesuffix("\n").split("\n")
        lines = [line.removesuffix("\r") for line in dict.fromkeys(found) if line]
        said = result.stderr.decode(errors="replace").strip().partition("\n")[0]
        if not lines and said:
            raise ToolError(said.partition(": ")[2] or said)
        more = [f"[There are more than {_MAX_MATCHES}; search for less.]"]
        return "\n".join(lines[:_MAX_MATCHES] + more * (len(lines) > _MAX_MATCHES)) or nothing


class EditorTool(UsesSandbox):
    """`str_replace_editor`."""

    @tool
    async def str_replace_editor(
        self,
        command: Literal["view", "create", "str_replace", "insert", "undo_edit"],
        path: str,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: int | None = None,
        view_range: list[int] | None = None,
    ) -> str:
        """View and edit a text file.

        Args:
            command: what to do.
            path: the file, or for view also a folder.
            file_text: for create: all of the file.
            old_str: for str_replace: the text to replace; it must be in the file exactly once.
            new_str: for str_replace and insert: the new text.
            insert_line: for insert: the line after which the text goes; 0 is the beginning.
            view_range: for view: the first and the last line, from 1; -1 is the end.
        """
        match command:
            case "view":
                return await self._view_file_or_folder(path, view_range)
            case "create":
                data = _require_editor_argument(file_text, "create", "file_text").encode()
                await self._write_file_with_undo(path, await self._read_bytes_or_none(path), data)
                return f"Wrote {path}."
            case "str_replace":
                old, new = (
                    _require_editor_argument(old_str, command, "old_str"),
                    require_text(new_str or "", "new_str"),
                )
                file = await self._read_sandbox_text_file(path)
                return await self._edit_and_show_lines(
                    path, file, *replace_once(file, old, new, path)
                )
            case "insert":
                new = _require_editor_argument(new_str, command, "new_str")
                file = await self._read_sandbox_text_file(path)
                return await self._edit_and_show_lines(
                    path, file, *insert_lines(file, insert_line, new)
                )
            case "undo_edit":
                return await self._undo_last_edit(path)

    async def _view_file_or_folder(self, path: str, view_range: list[int] | None) -> str:
        try:
            file = await self._read_sandbox_text_file(path)
        except FileAccessError as error:
            if "folder" not in str(error):
                raise
            entries = await self.sandbox.list_dir(path)
            return "\n".join(f"{e.name}{'/' * (e.kind == 'folder')}" for e in entries) or "[empty]"
        first, last = _parse_view_range(view_range, len(file.lines))
        return _number_lines(file.lines, first, last) or "[empty]"

    async def _edit_and_show_lines(self, path: str, file: FileText, after: str, place: int) -> str:
        await self._write_file_with_undo(path, file.encoded(file.text), file.encoded(after))
        lines = [*replace(file, text=after).lines, ""]
        changed = len(replace(file, text=after[:place] + "x").lines)
        near = _number_lines(lines, max(1, changed - 3), min(len(lines), changed + 6))
        return f"Edited {path}:\n{near}"

    async def _write_file_with_undo(self, path: str, before: bytes | None, after: bytes) -> None:
        await self.sandbox.write_file(path, after, in_place=True)
        self._edits.setdefault(path, []).append((before, after))

    async def _read_bytes_or_none(self, path: str) -> bytes | None:
        try:
            return await self.sandbox.read_file(path, max_bytes=_MAX_EDIT_BYTES)
        except FileAccessError as error:
            if "no such file" in str(error):
                return None
            raise

    async def _undo_last_edit(self, path: str) -> str:
        if not self._edits.get(path):
            raise ToolError(f"there is no edit of {path} to undo")
        before, after = self._edits[path][-1]
        if await self._read_bytes_or_none(path) != after:
            raise ToolError(f"{path} was changed after its last edit here; edit it by hand")
        if before is None:
            await self.sandbox.exec(["rm", "-f", "--", path])
        else:
            await self.sandbox.write_file(path, before, in_place=True)
        self._edits[path].pop()
        return f"Undid the last edit of {path}."


def _require_editor_argument(value: str | None, command: str, name: str) -> str:
    if value is None:
        raise ToolError(f"{command} needs {name}")
    return require_text(value, name)


def _number_lines(lines: list[str], first: int, last: int) -> str:
    return "\n".join(f"{n:6}\t{line_shown(lines[n - 1])}" for n in range(first, last + 1))


def _parse_view_range(asked: list[int] | None, count: int) -> tuple[int, int]:
    if asked is None:
        return 1, count
    first, last = asked if len(asked) == 2 else (0, 0)
    last = count if last == -1 else min(last, count)
    if not 1 <= first <= max(last, 1):
        raise ToolError(f"view_range is {asked}, expected [first, last] within 1 to {count}")
    return first, last
