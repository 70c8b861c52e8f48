"""`docker`: one hardened container per sandbox, by the engine's own client library.

The container's first process is root without capabilities and only sleeps; every command runs as
nobody, so that `kill -9 -1`, the one thing that ends whatever a command has started, spares it.
"""

import asyncio
import contextlib
import functools
import importlib
import io
import os
import re
import secrets
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from agentrl.extras import pip_line
from agentrl.sandboxes.base import Sandbox
from agentrl.sandboxes.docker_stream import ExecStream
from agentrl.sandboxes.errors import SandboxDied, SandboxStartError, SandboxUnavailable
from agentrl.sandboxes.owner import Owner
from agentrl.sandboxes.process import DRAIN_S, KILL_S, Process, Sink, in_thread
from agentrl.sandboxes.seccomp import profile
from agentrl.sandboxes.types import WORKSPACE, Capability, Command, Limits, SandboxOptions

T = TypeVar("T")

LABEL: Final = "agentrl.owner"
_KILLED: Final = 137
_MARKER: Final = "AGENTRL_COMMAND"
_USER: Final = "65534:65534"
_TMP_BYTES: Final = 64 << 20
_NUM_THREADS: Final = 16
_HOLDS: Final[frozenset[Capability]] = frozenset(
    {"contained", "memory", "processes", "cpu", "disk", "files", "sessions", "mounts"}
)
_USER_PROCESSES: Final = 32768
"""Of all containers together; each has its own limit besides."""
_API_TIMEOUT_S: Final = 60
_SILENT_BUILD_S: Final = 1800
"""How long a step of a Dockerfile may say nothing."""
_POLL_S: Final = 0.2


class DockerEngine:
    """The Docker engine of DOCKER_HOST; its client is synchronous, so its calls run in threads."""

    def __init__(self, host: str) -> None:
        """Connect.

        Raises:
            SandboxUnavailable: The library or the engine is missing.
        """
        self.host = host
        try:
            self._docker: Any = importlib.import_module("docker")
        except ImportError:
            raise SandboxUnavailable(
                f"the backend docker needs the docker library: {pip_line('docker')}"
            ) from None
        if host.partition("://")[0] not in ("unix", "tcp"):
            raise SandboxUnavailable(f"DOCKER_HOST is {host}, expected unix:// or tcp://")
        self._errors: Any = importlib.import_module("docker.errors")
        try:
            # Raise OSError if nobody is there: the client would leave its socket open.
            kind, _, place = host.partition("://")
            if kind == "unix":
                with socket.socket(socket.AF_UNIX) as attempt:
                    attempt.connect(place)
            self.client: Any = self._docker.DockerClient(
                base_url=host, timeout=_API_TIMEOUT_S, max_pool_size=_NUM_THREADS
            )
        except (OSError, self._errors.DockerException) as error:
            raise SandboxUnavailable(
                f"no Docker engine answers at {host} ({_shorten_error(error)}); start it, or set "
                "DOCKER_HOST"
            ) from error
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "agentrl-docker")

    async def call(self, function: Callable[[], T]) -> T:
        """Run a call of the client in a thread.

        Raises:
            SandboxDied: The container is not there or does not run.
            SandboxUnavailable: The engine failed.
        """
        return await in_thread(lambda: self._call_and_translate_errors(function), self._threads)

    def _call_and_translate_errors(self, function: Callable[[], T]) -> T:
        try:
            return function()
        except self._errors.ImageNotFound as error:
            raise SandboxUnavailable(
                f"{_shorten_error(error)}; images are never pulled: run `agentrl sandbox build`, "
                "or docker pull it yourself"
            ) from error
        except self._errors.APIError as error:
            if error.status_code in (404, 409):
                raise SandboxDied(f"the container is gone: {_shorten_error(error)}") from error
            raise SandboxUnavailable(f"the engine failed: {_shorten_error(error)}") from error
        except (OSError, self._errors.DockerException) as error:
            raise SandboxUnavailable(f"the engine failed: {_shorten_error(error)}") from error

    @functools.cached_property
    def is_podman(self) -> bool:
        """Podman speaks the same protocol, but takes other options."""
        version: dict[str, Any] = self._call_and_translate_errors(self.client.version)
        return any("Podman" in part["Name"] for part in version.get("Components", ()))

    @functools.cached_property
    def seccomp(self) -> str:
        """The profile as the engine takes it: Docker its text, Podman a file of its machine."""
        if not self.is_podman:
            return profile()
        # Each start reads it, so it stays as long as the engine is used.
        self._profile = tempfile.NamedTemporaryFile("w", prefix="agentrl-")  # noqa: SIM115
        self._profile.write(profile())
        self._profile.flush()
        return self._profile.name

    def load_image(self, data: bytes, name: str) -> str:
        """Make an image of a root file system; returns its id."""
        repository, _, tag = name.partition(":")
        api = self.client.api
        self._call_and_translate_errors(
            lambda: api.import_image_from_data(data, repository=repository, tag=tag or "latest")
        )
        return str(self._call_and_translate_errors(lambda: self.client.images.get(name).id))

    def build_image(self, dockerfile: str, name: str) -> None:
        """Build an image; what its Dockerfile begins from must be here or within reach.

        Raises:
            SandboxUnavailable: A step failed; the last lines that it said are in the message.
        """
        said: deque[str] = deque(maxlen=5)

        def build() -> None:
            file = io.BytesIO(dockerfile.encode())
            events = self.client.api.build(
                fileobj=file, tag=name, rm=True, decode=True, timeout=_SILENT_BUILD_S
            )
            for event in events:
                said.append(str(event.get("stream", "")).strip())
                if "error" in event:
                    raise SandboxUnavailable(
                        f"the image {name} could not be built ({event['error']}) after: "
                        f"{' | '.join(filter(None, said))}; mend its Dockerfile, or build it "
                        "yourself and name the image"
                    )

        self._call_and_translate_errors(build)

    def has_image(self, name: str) -> bool:
        """True if it need not be pulled."""
        try:
            return bool(self._call_and_translate_errors(lambda: self.client.images.get(name)))
        except SandboxUnavailable:
            return False

    def remove(self, container: str) -> None:
        """Remove a container with all that belongs to it; it may be gone already."""
        with contextlib.suppress(SandboxDied):
            self._call_and_translate_errors(
                lambda: self.client.api.remove_container(container, force=True, v=True)
            )

    def owned(self) -> Iterator[tuple[Owner, str]]:
        """The containers that some process of ours has made."""
        found: list[dict[str, Any]] = self._call_and_translate_errors(
            lambda: self.client.api.containers(all=True, filters={"label": LABEL})
        )
        for container in found:
            owner = Owner.parse(container["Labels"][LABEL])
            if owner is not None:
                yield owner, str(container["Names"][0]).lstrip("/")

    def reap(self) -> int:
        """Remove the containers of processes that are gone; how many that were."""
        gone = [container for owner, container in self.owned() if owner.is_gone]
        for container in gone:
            self.remove(container)
        return len(gone)


@functools.cache
def _make_engine_once_per_host(host: str) -> DockerEngine:
    return DockerEngine(host)


@functools.cache
def _reap_containers_once_per_host(host: str) -> int:
    return _make_engine_once_per_host(host).reap()


def engine(*, reap: bool = True) -> DockerEngine:
    """The engine of DOCKER_HOST; what dead processes left in it is removed at the first call."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if reap:
        _reap_containers_once_per_host(host)
    return _make_engine_once_per_host(host)


class DockerSandbox(Sandbox):
    """A container whose root is read-only and whose workspace is a tmpfs of limited size."""

    name = "docker"
    scratch_folders = ("/tmp", "/dev/shm")

    def __init__(self, options: SandboxOptions | None = None) -> None:
        super().__init__(options)
        self._container = f"agentrl-{secrets.token_hex(8)}"
        self._num_ooms = 0
        self._engine: DockerEngine | None = None

    async def _start_backend(self) -> None:
        self._engine = used = await asyncio.to_thread(engine)
        if used.is_podman:  # it would make a folder that is missing
            for source in self.options.mounts.values():
                if not source.exists():
                    raise SandboxStartError(f"{source} is to be mounted, but it is not there")
        api = used.client.api
        await used.call(lambda: api.create_container(**self._make_container_settings(used)))
        try:
            await used.call(lambda: api.start(self._container))
        except SandboxDied as error:
            raise SandboxStartError(str(error)) from error
        self.capabilities = _HOLDS - {"files"} if used.is_podman else _HOLDS
        result = await self._run_script("touch /workspace /tmp && echo ok", timeout_s=20.0)
        if not result.ok:
            raise SandboxStartError(
                f"the image {self.options.image} cannot run as nobody: {result.text().strip()}"
            )
        if self.options.base is not None:
            await self.upload(self.options.base)

    def _make_container_settings(self, engine: DockerEngine) -> dict[str, Any]:
        limits = self.limits
        hardened = _make_hardened_host_config(limits, engine.seccomp, inodes=not engine.is_podman)
        if engine.is_podman:  # it would raise the user's limit, which not every root may
            limit = {"Name": "nproc", "Soft": _USER_PROCESSES, "Hard": _USER_PROCESSES}
            hardened["ulimits"].append(limit)
        config = engine.client.api.create_host_config(**hardened, mounts=self._make_mounts())
        return {
            "image": self.options.image,
            "command": ["sleep", str(limits.lifetime_s)],
            "name": self._container,
            "user": "0:0",
            "working_dir": "/",
            "labels": {LABEL: str(Owner.this())},
            "host_config": config,
        }

    def _make_mounts(self) -> list[dict[str, Any]]:
        """Folders of the engine's machine; one that is missing is an error and not made."""
        return [
            {
                "Type": "bind",
                "Source": str(source.absolute()),
                "Target": self.mounts[name],
                "ReadOnly": True,
                # What is mounted below would not be read-only.
                "BindOptions": {"NonRecursive": True},
            }
            for name, source in self.options.mounts.items()
        ]

    def _destroy_backend(self) -> None:
        if self._engine is not None:
            self._engine.remove(self._container)

    async def kill_leftovers(self) -> None:
        """End everything in the container, other commands and sessions too."""
        sweep = Command(argv=("sh", "-c", "kill -9 -1"), cwd="")
        process = await self._start_process_in_backend(sweep, lambda fd, data: None)
        try:
            async with asyncio.timeout(KILL_S):
                await process.wait()
        except TimeoutError:
            await self.close()
            raise SandboxDied("the processes in the container cannot be killed") from None

    async def _ask_client(self, question: Callable[[Any], T]) -> T:
        """Ask the engine's client."""
        used = self._engine
        assert used is not None
        return await used.call(lambda: question(used.client.api))

    async def _start_process_in_backend(self, command: Command, sink: Sink) -> Process:
        assert self._engine is not None
        marker = secrets.token_hex(8)
        made: Mapping[str, str] = await self._ask_client(
            lambda api: api.exec_create(
                self._container,
                list(command.argv),
                stdin=True,
                user=_USER,
                environment={**command.env, _MARKER: marker},
                workdir="/",
            )
        )
        stream = await ExecStream.start(self._engine.host, made["Id"], sink)
        return _DockerProcess(self, made["Id"], marker, stream)

    async def _was_killed_for_memory(self, code: int) -> bool:
        if code != _KILLED:
            return False
        file = "/sys/fs/cgroup/memory"
        text = (await self._run_script(f"cat {file}/memory.oom_control {file}.events")).stdout
        found = re.search(rb"oom_kill (\d+)", text)
        if found is None:
            # In a container that is ending, commands fail in odd ways.
            await self._require_running_container()
            return False
        before, self._num_ooms = self._num_ooms, int(found[1])
        return self._num_ooms > before

    async def _require_running_container(self) -> None:
        """Every command ends like a killed one when the container does: then it has no result."""
        found = await self._ask_client(lambda api: api.inspect_container(self._container))
        if not found["State"]["Running"]:
            raise SandboxDied("the container ended")

    async def inspect_exec(self, exec_id: str) -> int | None:
        """The exit code of a command; None while it runs.

        Raises:
            SandboxDied: The container does not run any more.
        """
        state: Mapping[str, Any] = await self._ask_client(lambda api: api.exec_inspect(exec_id))
        if state["Running"] or state["ExitCode"] is None:
            return None
        code = int(state["ExitCode"])
        if code == _KILLED:
            await self._require_running_container()
        return code

    async def signal(self, marker: str, kill: str) -> bool:
        """Run a line on the processes that have the marker in their environment, oldest first."""
        found = f'grep -lz "^{_MARKER}={marker}$" /proc/[0-9]*/environ'
        return (await self._run_script(f"set -- $({found} | tr -dc '0-9\\n' | sort -n); {kill}")).ok


class _DockerProcess:
    """A command in the container."""

    def __init__(
        self, sandbox: DockerSandbox, exec_id: str, marker: str, stream: ExecStream
    ) -> None:
        self._sandbox = sandbox
        self._id = exec_id
        self._marker = marker
        self._stream = stream
        self.write = stream.write
        self.close_stdin = stream.close_stdin

    async def wait(self) -> int:
        """Its exit code; a stream that a child holds open is not waited for."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self._stream.closed.wait()
                code = await self._sandbox.inspect_exec(self._id)
                if code is not None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(DRAIN_S):
                            await self._stream.closed.wait()
                    return code
        finally:
            await self._stream.end()

    async def interrupt(self) -> None:
        """Send SIGINT to it and the processes below it."""
        # The whole group at once: a shell takes no notice of what its child did not die of.
        await self._sandbox.signal(self._marker, 'kill -INT -- "-$1" || kill -INT "$@"')

    async def kill_children(self) -> bool:
        """Kill the processes below it; it is the first that has the marker."""
        return await self._sandbox.signal(self._marker, 'shift; kill -KILL "$@"')

    async def kill(self) -> None:
        """Sweep; if something survives that, the container itself has to go."""
        deadline = time.monotonic() + KILL_S
        await self._sandbox.kill_leftovers()
        while await self._sandbox.inspect_exec(self._id) is None:
            if time.monotonic() > deadline:
                await self._sandbox.close()
                raise SandboxDied("a command did not end when it was killed")
            await asyncio.sleep(0.02)
        await self._stream.end()


def _make_hardened_host_config(limits: Limits, seccomp: str, *, inodes: bool) -> dict[str, Any]:
    tmpfs = "rw,exec,nosuid,nodev,mode=1777"
    if inodes:
        tmpfs += f",nr_inodes={limits.files}"
    return {
        "network_mode": "none",
        "ipc_mode": "private",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges", f"seccomp={seccomp}"],
        "read_only": True,
        "tmpfs": {
            WORKSPACE: f"{tmpfs},size={limits.disk_bytes}",
            "/tmp": f"{tmpfs},size={min(_TMP_BYTES, limits.disk_bytes)}",
        },
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "pids_limit": limits.processes,
        "cpu_period": 100_000,
        "cpu_quota": int(limits.cpus * 100_000),
        "ulimits": [
            {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "shm_size": 64 << 20,
        "init": True,
        "auto_remove": True,
        "log_config": {"Type": "none"},
    }


def _shorten_error(error: object) -> str:
    said: object = getattr(error, "explanation", None)
    return str(said or error).strip().partition("\n")[0]
