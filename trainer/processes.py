"""The ranks of one machine: processes that run the same call at the same time.

    RankProcesses.call ─ fn, args ─▶ rank 0   fn(held, *args)  ─┐  a list with each one's result,
                       ─ fn, args ─▶ rank 1   fn(held, *args)  ─┘  or one error for all of them

`held` is what each rank made of its `Ranks` when it was started. The ranks wait for each other
inside the calls, so one that fails alone leaves the others waiting: all of them are stopped then.
If every rank raises the same error, they agree, and go on.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

import torch
from torch import distributed

from agentrl.aio import run
from agentrl.errors import AgentrlError, RunError
from agentrl.trainer.device import OutOfMemory, is_out_of_memory, resolve_device
from agentrl.trainer.parallel_dims import ParallelDims, Ranks, join
from agentrl.workers.calls import WorkerDied, pickled_call, value_of
from agentrl.workers.channel import Channel
from agentrl.workers.spawner import Spawner

H = TypeVar("H", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")

_START_S: Final = 120.0
_LONGEST_S: Final = 1e6
"""A call as such has no limit: the exchanges inside it have."""
_GRACE_S: Final = 5.0
"""How long the other ranks may take to say what they saw, once one has failed."""
_MAX_RESULT_BYTES: Final = 1 << 30
_PREFIX: Final = "agentrl-ranks-"
_OLD_S: Final = 3600.0


class PeerLost(RunError):
    """A rank waited in vain for another."""


class RankProcesses(Generic[H]):
    """Starts the processes, and ends them with all that they started."""

    def __init__(
        self,
        layout: ParallelDims,
        make: Callable[[Ranks], H],
        *,
        device: str = "cpu",
        threads: int = 0,
        deadline_s: float = 30.0,
    ) -> None:
        """Start them, let them meet, and let each make what its calls work with.

        Args:
            layout: how many, and how they are arranged.
            make: called on each rank.
            device: as `resolve_device` takes it.
            threads: CPU threads of each; 0 shares the cores out.
            deadline_s: one that was stopped for so long is killed, and with it all.
        """
        self.layout = layout
        # What processes that were killed left: their ranks died with them, their files did not.
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
            with contextlib.suppress(OSError):
                old = time.time() - folder.stat().st_mtime > _OLD_S
                if owner.isdigit() and old and not Path("/proc", owner).exists():
                    shutil.rmtree(folder, ignore_errors=True)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        # What every rank imports is imported once, before they are forked.
        preload = ("agentrl.trainer.trainer", __name__)
        self._spawner = Spawner(
            memory_bytes=None,
            max_result_bytes=_MAX_RESULT_BYTES,
            preload=preload,
            deadline_s=deadline_s,
        )
        self._channels: list[Channel] = []
        self._lock, self._closing = Lock(), Lock()
        threads = threads or max(1, len(os.sched_getaffinity(0)) // layout.size)
        rendezvous = self._folder / "rendezvous"
        try:
            self._channels += [self._spawner.spawn() for _ in range(layout.size)]
            self._ask_all("start", [channel.start(_START_S) for channel in self._channels])
            starts = [
                partial(_start_rank, rank, layout, device, rendezvous, threads)
                for rank in range(layout.size)
            ]
            meet = [pickled_call(start, (), keeps=True) for start in starts]
            self._exchange_calls("meet", meet, _start_rank, _START_S)
            build = pickled_call(_run_rank_call, (make, ()), keeps=True)
            self._exchange_calls("build", [build] * layout.size, make, _LONGEST_S)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """False once they were stopped."""
        return bool(self._channels)

    def call(
        self, fn: Callable[Concatenate[H, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> list[T]:
        """`call_as` under the function's own name."""
        return self.call_as(fn.__name__.strip("_").replace("_", " "), fn, *args, **kwargs)

    def call_as(
        self, name: str, fn: Callable[Concatenate[H, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> list[T]:
        """What `fn` returns on each rank, given what it holds and the arguments.

        Errors say `name`.

        Raises:
            RunError: a rank ended, lost the others or ran out of memory; all are stopped.
            Exception: what every rank raised alike, or the first did; then all are stopped.
        """
        if not self.alive:
            raise RunError("the ranks were stopped after an earlier error; resume the run")
        request = pickled_call(_run_rank_call, (partial(fn, **kwargs), args))
        with self._lock:  # the ranks meet inside a call, so calls must not overlap
            return self._exchange_calls(name, [request] * self.layout.size, fn, _LONGEST_S)

    def interrupt(self) -> None:
        """End the processes if they are in a call, which raises RunError in its thread."""
        if self._lock.locked():
            self.close()

    def close(self) -> None:
        """End the processes and wait for them; a second call does nothing."""
        with self._closing:
            self._spawner.close()
            for channel in self._channels:
                channel.close()
            self._channels.clear()
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _exchange_calls(
        self,
        name: str,
        requests: Sequence[bytes],
        fn: Callable[..., T],
        timeout_s: float,
    ) -> list[T]:
        async def exchange(channel: Channel, request: bytes) -> T:
            return value_of(await channel.exchange(request, timeout_s), fn)

        pairs = zip(self._channels, requests, strict=True)
        return self._ask_all(name, [exchange(*pair) for pair in pairs])

    def _ask_all(self, name: str, asked: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """What all ranks answer; if one fails for good, all are stopped."""

        async def exchange_all() -> "list[asyncio.Task[T]]":
            tasks = [asyncio.create_task(exchange) for exchange in asked]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if any(task.exception() for task in done):
                await asyncio.wait(tasks, timeout=_GRACE_S)
            return tasks

        try:
            tasks = run(exchange_all())
        except BaseException:
            self.close()
            raise
        errors = [None if task.cancelled() else task.exception() for task in tasks]
        if not any(errors):
            return [task.result() for task in tasks]
        first = errors[0]
        alike = len({(type(error), str(error)) for error in errors}) == 1
        sound = isinstance(first, AgentrlError) and not isinstance(first, OutOfMemory)
        if alike and sound and first is not None and _rate_error_as_cause(first) == 1:
            raise first
        self.close()
        raise self._choose_causing_error(name, errors)

    def _choose_causing_error(
        self, name: str, errors: Sequence[BaseException | None]
    ) -> BaseException:
        """The error that the others follow from: an end, then any error but a lost peer."""
        found = [(rank, error) for rank, error in enumerate(errors) if error is not None]
        found.sort(key=lambda item: _rate_error_as_cause(item[1]))
        rank, error = found[0]
        who = f"rank {rank} of {self.layout.size}"
        after = "all ranks were stopped: resume the run from its last checkpoint"
        if isinstance(error, WorkerDied):
            hint = ", perhaps since memory ran out" if "SIGKILL" in str(error) else ""
            return RunError(f"{who} ended during {name} ({error}{hint}); {after}")
        if isinstance(error, OutOfMemory):
            return OutOfMemory(f"{who}, during {name}: {error}")
        if isinstance(error, PeerLost | TimeoutError):
            late = [str(i) for i, e in enumerate(errors) if e is None]
            waits = f"; rank {', '.join(late)} did not answer" if late else ""
            return RunError(
                f"{who} waited for the others during {name} for up to {self.layout.timeout_s:g} s "
                f"(trainer.rank_timeout_s) in vain{waits}; {after}"
            )
        error.add_note(f"raised by {who} during {name}; {after}")
        return error


def _rate_error_as_cause(error: BaseException) -> int:
    if isinstance(error, WorkerDied):
        return 0
    return 2 if isinstance(error, PeerLost | TimeoutError) else 1


# What runs in the processes of the ranks.


def _start_rank(
    rank: int, layout: ParallelDims, device: str, rendezvous: Path, threads: int
) -> Ranks:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the run has a step to end, and a checkpoint
    torch.set_num_threads(threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return join(rank, layout, device=resolve_device(device, rank), rendezvous=rendezvous)


def _run_rank_call(held: object, fn: Callable[..., T], args: tuple[object, ...]) -> T:
    try:
        return fn(held, *args)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise OutOfMemory(
                f"the trainer ran out of memory ({(str(error) or 'no memory').splitlines()[0]}); "
                "resume from the last checkpoint with a lower trainer.token_budget, more "
                "trainer.ranks or trainer.activation_checkpointing"
            ) from error
        if isinstance(error, distributed.DistError) or "gloo" in str(error).lower():
            raise PeerLost(str(error).splitlines()[0]) from error
        raise
