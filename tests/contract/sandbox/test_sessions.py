"""What runs in a session cannot redefine what the session needs; a broken one is said at once."""

import time
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.sandboxes import SandboxOptions, SandboxPools, Session, SyncSandbox, SyncSession
from agentrl.testing.sandbox_arena import attack_options
from agentrl.tools.sandboxed import shown

pytestmark = pytest.mark.sandbox

AT_ONCE_S: Final = 10.0
"""Less than the timeouts below, and more than a slow machine needs."""

LASTING: Final = (
    "eval() { :; }; printf() { :; }; exec() { :; }; read() { :; }; trap() { :; }; unset() { :; }",
    ".() { :; }; set() { :; }; builtin() { :; }; command() { :; }; source() { :; }",
    "alias eval=: printf=: .=: set=: exec=: '{=x' if=x",
    "shopt -s expand_aliases extglob nullglob failglob nocasematch; shopt -u sourcepath",
    "exec >lost",
    "exec 2>lost",
    "exec </etc/passwd",
    "exec <&- >&- 2>&-",
    "exec 10>lost 11>lost 12>lost 13>lost 37>lost 255>lost",
    "exec 2>&1 | cat",
    "set -e",
    "set -efuCE -o pipefail",
    "set -n",
    "set -k",
    "set -o posix",
    "set -xv",
    "PS4='\x1e'; PS1='$(echo x) '; PS2=y; PROMPT_COMMAND='printf z'; IFS=abce-/",
    "PROMPT_COMMAND=(true 'sleep 90'); PS0='$(sleep 90)'; PS1=$PS0; PS2=$PS0",
    "TMOUT=1",
    "readonly POSIXLY_CORRECT",
    "readonly POSIXLY_CORRECT=x",
    "set -o posix; readonly POSIXLY_CORRECT",
    "declare -i POSIXLY_CORRECT",
    "set -t",
    "set -t\necho more\necho lines",
    "alias [[=x",
    "readonly IFS PS1 PS4 REPLY _",
    "trap 'printf x' ERR RETURN DEBUG",
    "trap 'false' EXIT INT TERM HUP",
    "PATH=; cd /tmp; mkdir -p gone; cd gone; rmdir ../gone",
    "if true; then",
    "echo '",
    "cat <<END",
    ") }",
    "break 9; continue 9; return 7; false",
    "set -u; echo $nothing",
    "echo ${nothing?}",
    "export 1x; shift 99; unset -f 1; . nothing",
    "kill -INT $$; kill -TERM $$",
    "sleep 30 & disown",
    "exec nothing",
    "declare -n PS1=kept PROMPT_COMMAND=kept",
    "declare -n POSIXLY_CORRECT=kept",
    "declare -n POSIXLY_CORRECT=kept; kill -INT $$",
    "set -e; declare -n POSIXLY_CORRECT=other other=kept",
    "declare -n POSIXLY_CORRECT; set -u",
    "BASH_ARGV0=$'x\\ny'",
    "(exit 9)",
    "printf 'no line end'",
    "head -c 70000 /dev/urandom",
)
"""Code after which the session still has what it had."""
ENDING: Final = (
    "exit 3",
    "exec true",
    "exec bash",
    "kill -9 $$",
    "set -r",
    "enable -n .",
    "enable -n . set",
    "ulimit -n 4",
    "shopt -s extdebug; trap false DEBUG",
    ".() { :; }; readonly POSIXLY_CORRECT",
    "for i in {3..255}; do eval \"exec $i>&-\"; done",
    "exec 10<&-",
    "trap 'exec 0</dev/null' DEBUG",
)  # fmt: skip
"""Code that ends or breaks the shell, at once or for the next call."""
MIXED: Final = [c for c in LASTING if not c.startswith("set -e") and "POSIXLY_CORRECT" not in c]
"""Code that lasts beside any other; what fails behind `set -e` ends the shell, as it should."""
WORDS: Final = (
    *("set", "-t", "-e", "-r", "+e", "-x", "-u", "-o", "posix", "--", "shopt", "-s", "extdebug"),
    *("enable", "-n", ".", "[[", "builtin", "readonly", "declare", "-i", "unset", "<<E", "PS0="),
    *("POSIXLY_CORRECT", "POSIXLY_CORRECT=x", "IFS=e", "TMOUT=1", "BASH_ARGV0=x", "alias"),
    *("set=x", ".=x", "trap", "DEBUG", "EXIT", "exec", "exit", "return", "false", "echo"),
    *(">&-", "2>&-", "37>x", "{", "}", "(", ")", "if", "then", "fi", "!", "&", "|", "&&", ";"),
    *("\n", "'", '"', "$("),
)
"""Random code is made of these; nothing in it takes time."""
PROBE: Final = "/bin/echo ok $kept"


def _sync(session: SyncSession) -> Session:
    assert isinstance(session.behind, Session)
    return session.behind


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from(MIXED), max_size=3),
    st.sampled_from(("", "", *ENDING)),
    st.booleans(),
)
def _check_shell(sandbox: SyncSandbox, before: list[str], ending: str, at_once: bool) -> None:
    session = sandbox.session()
    began = time.monotonic()
    session.run("kept=7", timeout_s=60)
    calls = ["\n".join(before)] if at_once else before
    for code in (*calls, *[ending] * bool(ending)):
        session.run(code, timeout_s=60)
    result = session.run(PROBE, timeout_s=60)
    said = shown(result, 60, _sync(session))
    if not ending:
        assert b"ok 7\n" in result.stdout, said
        assert result.exit_code == 0, said
    else:
        _check_lost(session, said)
    session.close()
    assert time.monotonic() - began < AT_ONCE_S


def _check_lost(session: SyncSession, said: str) -> None:
    """The probe ran, in the old shell or in a new one; or it says that the next call will."""
    if "ok" not in said.split():
        assert said.endswith("The bash session ended; the next call begins a new one.]")
        assert session.run(PROBE, timeout_s=60).stdout == b"ok\n"


@settings(max_examples=25)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), max_size=3))
def _check_random_code(sandbox: SyncSandbox, calls: list[str]) -> None:
    session = sandbox.session()
    began = time.monotonic()
    for code in ("kept=7", *calls):
        session.run(code, timeout_s=60)
    _check_lost(session, shown(session.run(PROBE, timeout_s=60), 60, _sync(session)))
    session.close()
    assert time.monotonic() - began < AT_ONCE_S


@pytest.mark.bwrap
def test_random_code_before_a_command() -> None:
    with SyncSandbox(attack_options("bwrap")) as sandbox:
        _check_shell(sandbox)
        _check_random_code(sandbox)


@pytest.mark.bwrap
@pytest.mark.parametrize(
    "breaking",
    [
        *("set -r", "enable -n .", "ulimit -n 4", "exec 10<&-", "trap 'exec 0</dev/null' DEBUG"),
        'for i in {3..255}; do eval "exec $i<&-"; done',
    ],
)
def test_what_a_broken_shell_cannot_begin_runs_in_a_new_one(breaking: str) -> None:
    with SyncSandbox(attack_options("bwrap")) as sandbox:
        session = sandbox.session()
        session.run(f"kept=7; {breaking}", timeout_s=60)
        result = session.run("echo once >>/tmp/times; cat /tmp/times", timeout_s=60)
        said = "once\n[The bash session had ended; this ran in a new one.]"
        assert shown(result, 60, _sync(session)) == said
        assert session.run(PROBE, timeout_s=60).stdout == b"ok\n"
        assert not _sync(session).began_anew
        session.close()


@pytest.mark.bwrap
@pytest.mark.parametrize(
    "name", ["PS0", "PS1", "PS2", "TMOUT", "PROMPT_COMMAND", "POSIXLY_CORRECT"]
)
def test_what_is_set_for_prompts_is_set_in_no_other_name(name: str) -> None:
    with SyncSandbox(attack_options("bwrap")) as sandbox:
        session = sandbox.session()
        session.run(f"kept=7; unset() {{ :; }}; declare -n {name}=kept", timeout_s=60)
        assert session.run(PROBE, timeout_s=60).stdout == b"ok 7\n"
        assert not _sync(session).began_anew


async def test_a_shell_keeps_what_its_session_needs(
    options: SandboxOptions, pools: SandboxPools
) -> None:
    async with pools.acquire(options) as sandbox:
        for nasty in LASTING:
            bash = await sandbox.session()
            await bash.run("kept=7", timeout_s=60)
            await bash.run(nasty, timeout_s=60)
            result = await bash.run(PROBE, timeout_s=60)
            assert b"ok 7\n" in result.stdout, (nasty, result)
            assert result.exit_code == 0, (nasty, result)
            await bash.close()


@pytest.mark.bwrap
def test_a_call_shows_nothing_that_its_code_did_not_print() -> None:
    with SyncSandbox(attack_options("bwrap")) as sandbox:
        for name in ("x", "/a/b c", "two\nlines", "n" * 300, ""):
            session = sandbox.session()
            shown = session.run(f"BASH_ARGV0='{name}'; printf said", timeout_s=60)
            assert shown.stdout == b"said", name
            assert session.run("printf more", timeout_s=60).stdout == b"more", name
            assert session.run("printf x; kill -INT $$", timeout_s=60).stdout == b"x", name
            session.close()


async def test_a_timeout_leaves_variables_and_folder(
    options: SandboxOptions, pools: SandboxPools
) -> None:
    stubborn = "bash -c 'trap : INT TERM; while :; do sleep 0.1; done'"
    async with pools.acquire(options) as sandbox:
        bash = await sandbox.session()
        await bash.run("kept=7; cd /tmp", timeout_s=60)
        # An engine's interrupt seldom meets so short a child.
        loops = ("sleep 0.2", ":", *["sleep 0.001"] * (options.backend == "bwrap"))
        codes = (*(f"while true; do {step}; done" for step in loops), "sleep 90; kept=8", stubborn)
        for code in codes:
            late = await bash.run(f"echo begun; {code}", timeout_s=0.6)
            assert (late.status, late.stdout) == ("timeout", b"begun\n")
            assert (await bash.run("echo $kept $PWD", timeout_s=60)).stdout == b"7 /tmp\n"


@pytest.mark.bwrap
def test_an_interrupt_of_shell_and_child_at_once_leaves_the_session() -> None:
    with SyncSandbox(attack_options("bwrap")) as sandbox:
        session = sandbox.session()
        session.run("kept=7", timeout_s=60)
        for step in ("sleep 0.001", "sleep 0.001 | cat", "(:; sleep 0.001)", "/bin/true & wait"):
            for _ in range(10):
                late = session.run(f"echo begun; while true; do {step}; done", timeout_s=0.2)
                # Where jobs die of it, bash now and then ends no line.
                assert (late.status, late.stdout.rstrip(b"\n")) == ("timeout", b"begun"), step
        assert session.run("echo $kept", timeout_s=60).stdout == b"7\n"


@pytest.mark.bwrap
def test_a_session_that_ended_between_calls_is_said() -> None:
    with SyncSandbox(attack_options("bwrap")) as sandbox:
        session = sandbox.session()
        session.run("kept=7; (sleep 0.1; kill -9 $$) &", timeout_s=60)
        while _sync(session).is_running:
            time.sleep(0.05)
        result = session.run("echo new $kept", timeout_s=60)
        said = "new\n[The bash session had ended; this ran in a new one.]"
        assert shown(result, 60, _sync(session)) == said


PYTHON: Final = (
    "import sys; sys.stdout = sys.stderr = sys.stdin = None",
    "import sys; sys.stdout.close()",
    "import builtins; builtins.print = None; del builtins.exec, builtins.compile, builtins.eval",
    "import os; os.write = os.dup2 = os.fstat = os.getpid = None",
    "import os; os.dup2(os.open('/dev/null', 1), 1); os.dup2(1, 2)",
    "import os; [os.close(n) for n in (0, 1, 2)]",
    "import ast, traceback; ast.parse = traceback.print_exception = None; 1 / 0",
    "import sys; sys.modules.clear()",
    "import os; os.fork() and os.wait() or print('child')",
    "class Odd(BaseException):\n  def __str__(self): raise self\nraise Odd",
    "globals().pop('__builtins__')",
    "__builtins__ = None",
    "globals().clear(); print = __builtins__ = {}; kept = 7",
    "print = repr = exec = None",
)
BROKEN_PYTHON: Final = (
    "import os; os.closerange(3, 99)",
    "import os; [os.dup2(os.open('/dev/null', 1), n) for n in range(3, 20)]",
    "import sys; sys.exit(3)",
    "import os; os._exit(4)",
)


async def test_an_interpreter_keeps_what_its_session_needs(
    options: SandboxOptions, pools: SandboxPools
) -> None:
    async with pools.acquire(options) as sandbox:
        for nasty in PYTHON:
            python = await sandbox.session("python")
            await python.run("kept = 7", timeout_s=60)
            await python.run(nasty, timeout_s=60)
            result = await python.run("kept", timeout_s=60)
            assert (result.exit_code, result.stdout) == (0, b"7\n"), (nasty, result)
            await python.close()


@pytest.mark.bwrap
def test_no_output_of_an_interpreter_is_lost() -> None:
    with SyncSandbox(attack_options("bwrap")) as sandbox:
        session = sandbox.session("python")
        for code in ("sys.stdout.reconfigure(write_through=False)", "pass", "sys.stdout.detach()"):
            said = session.run(f"import sys; {code}; print('said', end='')", timeout_s=60).stdout
            assert "detach" in code or said == b"said", code
        assert session.run("print(8)", timeout_s=60).stdout == b"8\n"
        assert not _sync(session).began_anew


async def test_a_broken_interpreter_is_said_at_once(
    options: SandboxOptions, pools: SandboxPools
) -> None:
    async with pools.acquire(options) as sandbox:
        for nasty in BROKEN_PYTHON:
            python = await sandbox.session("python")
            began = time.monotonic()
            result = await python.run(nasty, timeout_s=60)
            assert result.exit_code
            assert not python.is_running
            assert (await python.run("1 + 1", timeout_s=60)).stdout == b"2\n"
            assert time.monotonic() - began < AT_ONCE_S
