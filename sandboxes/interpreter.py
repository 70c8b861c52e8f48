"""The loop of a Python session: it keeps what it needs apart from what the code can change."""

import re
import secrets
from typing import Final

from agentrl.sandboxes.framing import Marks

# Reads a header line (two marks and a number of bytes) and so much code, and runs it between the
# marks. It has a dict of builtins of its own and takes no attribute of a module later, since the
# code may change both. A SystemExit ends the session; so does the end of its own descriptors.
_LOOP: Final = r"""
import _ast, builtins, io, os, sys, traceback
def make_loop(write=os.write, dup2=os.dup2, fstat=os.fstat, getpid=os.getpid, leave=os._exit,
              Text=io.TextIOWrapper, File=io.FileIO, explain=traceback.print_exception,
              Expr=_ast.Expr, Expression=_ast.Expression, ONLY_AST=_ast.PyCF_ONLY_AST):
    source = os.fdopen(os.dup(0), "rb")
    out, null = os.dup(1), os.open(os.devnull, os.O_RDONLY)
    place, pid = fstat(out).st_ino, getpid()
    names = {"__name__": "__main__", "__builtins__": builtins}
    kept = None

    def renew():
        nonlocal kept
        if fstat(out).st_ino != place:
            leave(1)
        dup2(null, 0)
        dup2(out, 1)
        dup2(out, 2)
        try:
            kept.flush()
        except (AttributeError, ValueError):  # at first, and where the code closed or detached it
            file = File(1, "w", closefd=False)
            kept = Text(file, "utf-8", "backslashreplace", write_through=True)
        sys.stdout = sys.stderr = kept
        names["__builtins__"] = builtins

    def run(code):
        tree = compile(code, "<input>", "exec", ONLY_AST)
        last = None
        if tree.body and isinstance(tree.body[-1], Expr):
            last = Expression(tree.body.pop().value)
        exec(compile(tree, "<input>", "exec"), names)
        if last is not None:
            value = eval(compile(last, "<input>", "eval"), names)
            if value is not None:
                text = repr(value)
                renew()
                kept.write(text + "\n")

    def report(error):
        trace = error.__traceback__
        for _ in range(2):
            trace = trace and trace.tb_next
        renew()
        try:
            explain(type(error), error, trace)
        except BaseException:
            write(2, b"%s\n" % type(error).__name__.encode())

    def loop():
        while True:
            try:
                header = source.readline().split()
            except KeyboardInterrupt:
                continue
            if not header:
                break
            code = 0
            renew()
            text = source.read(int(header[2])).decode()
            write(out, b"\x1e%s\x1f" % header[0])
            try:
                run(text)
            except SystemExit:
                raise
            except BaseException as error:
                code = 1
                report(error)
            if getpid() != pid:
                leave(code)
            renew()
            write(out, b"\x1e%s:%d\x1f" % (header[1], code))

    return loop
make_loop()()
"""
_START: Final = f"""
import builtins, sys
sys.path.insert(0, "")
exec({_LOOP!r}, {{"__builtins__": dict(builtins.__dict__)}})
"""
COMMAND: Final = ("python3", "-I", "-u", "-c", _START)


def call(code: str) -> tuple[bytes, Marks]:
    """The header and the code, and the marks that the loop prints."""
    begin, end = secrets.token_hex(8), secrets.token_hex(8)
    data = code.encode()
    header = f"{begin} {end} {len(data)}\n".encode()
    return header + data, Marks(
        begin=re.compile(b"\x1e%s\x1f" % begin.encode()),
        end=re.compile(rb"\x1e%s:(\d+)\x1f" % end.encode()),
    )
