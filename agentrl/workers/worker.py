"""What a worker process runs: one call after the other, until its parent hangs up.

Frames towards the worker: length, then a pickled (function, arguments, keeps). Towards the parent:
length, a flag byte, then a pickled reply; the flag says whether the worker may be used again.
"""

import os
import pickle
import socket
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agentrl.workers.pickling import CANNOT_PICKLE, dumps

REQUEST: Final = struct.Struct("<Q")
REPLY: Final = struct.Struct("<QB")
REUSABLE: Final = 0
SPENT: Final = 1


@dataclass(frozen=True, slots=True)
class Raised:
    """The function's exception; `pickled` is None if it cannot travel.

    A reply is a pair: None and the value, or this and None.
    """

    pickled: bytes | None
    text: str
    traceback: str


def serve(connection: socket.socket, max_result_bytes: int) -> None:
    """Say the process id, then answer calls until the parent closes its end."""
    ready = pickle.dumps(os.getpid())
    connection.sendall(REPLY.pack(len(ready), REUSABLE) + ready)
    held: list[object] = []
    stream = connection.makefile("rb")
    while len(header := stream.read(REQUEST.size)) == REQUEST.size:
        (size,) = REQUEST.unpack(header)
        request = stream.read(size)
        if len(request) < size:
            return
        reply = run_pickled_call(request, held)
        if len(reply) > max_result_bytes:
            reply = _pickle_refusal(
                f"the result has {len(reply)} bytes, more than the {max_result_bytes} that are "
                "allowed"
            )
        flag = SPENT if _reap_children_and_check_running() else REUSABLE
        connection.sendall(REPLY.pack(len(reply), flag) + reply)


def run_pickled_call(request: bytes, held: list[object]) -> bytes:
    """The reply; a result that is kept goes into `held`, before the arguments of later calls."""
    # Whatever user code raises has to reach the caller, SystemExit and KeyboardInterrupt too: this
    # is the last frame of the process that can still tell.
    try:
        function: Callable[..., object]
        function, arguments, keeps = pickle.loads(request)
        value = function(*held, *arguments)
    except BaseException as error:
        text = traceback.format_exception_only(error)[-1].strip()
        trace = "".join(traceback.format_exception(error))
        return pickle.dumps((Raised(_pickle_exception_if_catchable(error), text, trace), None))
    if keeps:
        held[:], value = [value], None
    try:
        return dumps((None, value))
    except CANNOT_PICKLE as error:
        return _pickle_refusal(f"the result, a {type(value).__name__}, cannot be pickled: {error}")


def _pickle_exception_if_catchable(error: BaseException) -> bytes | None:
    """The exception as bytes, if it is one that a caller can catch and that survives the way.

    StopIteration cannot leave a coroutine, and exceptions that are no Exception (SystemExit) must
    not end the caller.
    """
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        return None
    try:
        pickled = dumps(error)
        pickle.loads(pickled)
    except CANNOT_PICKLE:
        return None
    return pickled


def _pickle_refusal(text: str) -> bytes:
    return pickle.dumps((Raised(None, text, ""), None))


def _reap_children_and_check_running() -> bool:
    """True if the call left a process running; those that have ended are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
