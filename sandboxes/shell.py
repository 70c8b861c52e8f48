"""How a session speaks with its bash, so that nothing that runs there comes between.

Any name can be a function or an alias there, any option can be set, any descriptor closed. So the
lines of a call look up no name but `.` and `set`, which POSIX mode finds before functions and a
backslash before aliases; assigning POSIXLY_CORRECT turns that mode on, and the call's first line
turns it off again for the code. The marks are messages of the shell itself, about a file that
cannot be opened. The last line is a syntax error: the parser says so whatever can be executed, and
a shell that got there without the other marks is broken.

Such a line does not end an interactive shell, which also ignores `set -n`, lives on after the
errors that POSIX mode makes fatal, and comes back to its next line when SIGINT ends a call. It is
interactive in no other way: it has no terminal, prompt, history or job control.
"""

import re
import secrets
from typing import Final

from agentrl.sandboxes.framing import Marks

COMMAND: Final = (
    "bash",
    "--norc",
    "--noprofile",
    "-c",
    "exec 2>&1; exec bash --norc --noprofile --noediting -i",
)
# Before the shell reads on it may run code for a prompt, or end for want of input.
# What is a reference to another name is none then, so that the other one keeps its value. The mode
# goes by the name that is assigned, so its own value will do until it refers to nothing. Where any
# command will do there is one that closes a descriptor: no variable is set, nor a name looked up.
_QUIET: Final = (
    r"POSIXLY_CORRECT=${POSIXLY_CORRECT-} && "
    r"\unset -n PROMPT_COMMAND PS0 PS1 PS2 TMOUT POSIXLY_CORRECT || 37<&-"
    "; POSIXLY_CORRECT= || 37<&-; PROMPT_COMMAND=() PS0= PS1= PS2= TMOUT="
)
FIRST: Final = f"set +H +o history; shopt -s execfail; {_QUIET}\n".encode()

# A null command that redirects its standard input would be a process of its own, so it is another.
# `.` reads the code and not `eval`: then `exit` and `&` announce nothing, as in a script. Its
# redirections make what `exec` does to the first three descriptors last as long as the call.
# Errexit would take the last line for a failure; POSIXLY_CORRECT keeps it until the next call. With
# the option -t the shell would end behind the line that the code ran in. An interrupt that reaches
# the shell and its child may end the line behind the code, too: so that line stands there twice.
_CALL: Final = r"""
\. /dev/fd/37 37<<'BEGIN' </dev/null >&2 2>&1; 2>&1 37<"/END:$?" || 2>&1 37</END: || QUIET; \set +t
[[ ${POSIXLY_CORRECT-} != e ]] || \set -e; \set +o posix; 37</BEGIN || 37<&-
CODE
BEGIN
2>&1 37</END:130. || 2>&1 37</END: || QUIET; POSIXLY_CORRECT=${-//[^e]}
2>&1 37</END:130. || 2>&1 37</END: || QUIET; POSIXLY_CORRECT=${-//[^e]}
\set +e
(:) LAST
""".lstrip()

# The second message shows what the first began with, which BASH_ARGV0 sets. An interrupt makes the
# shell begin a new line, or several where jobs died of it, too; between the messages it may come
# again, or bash miss its terminal.
_END: Final = (
    rb"/%s:(\d+)(?P<anew>\.?): [^\n]*\n"
    rb"(?:.*(?:/%s:130\.|tcsetattr): [^\n]*\n)?(?P<before>.*?)/%s:: [^\n]*\n"
)


def call(code: str) -> tuple[bytes, Marks]:
    """The lines that run the code, and the marks that they make bash print."""
    begin, end, last = (secrets.token_hex(8) for _ in range(3))
    words = {"BEGIN": begin, "END": end, "QUIET": _QUIET, "CODE": code, "LAST": last}
    lines = re.sub("|".join(words), lambda found: words[found[0]], _CALL)
    return lines.encode(), Marks(
        begin=re.compile(rb"/%s: [^\n]*\n" % begin.encode()),
        end=re.compile(_END % ((end.encode(),) * 3), re.DOTALL),
        stopped=b"`%s'\n" % last.encode(),
    )
