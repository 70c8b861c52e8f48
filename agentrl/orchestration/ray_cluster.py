"""A Ray cluster: how a run reaches it, what it asks of it, and who looks after its nodes.

    driver ── connect ─▶ cluster ── reserve ─▶ bundles   a place for each worker, named by the run
           ── look ────▶ NodeWatch of each node: which processes there were stopped or are gone

Ray notices a killed node after a dozen seconds and a stopped process not at all, so that deadline
is kept here.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# ray is typed in part only.

import contextlib
import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil
import ray as typed_ray
from ray.exceptions import RuntimeEnvSetupError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agentrl.errors import ConfigError, RunError
from agentrl.workers.channel import is_stopped

_LOG = logging.getLogger(__name__)

ray: Any = typed_ray
"""Its types miss most of what it has."""

SENT: Final = "sent"
"""The version of an agentrl that came from this process."""
_SENT: Final = "py_modules_files"
"""In the paths of what Ray has sent to a node."""
_ANSWER_S: Final = 5.0
"""So long an address may take to answer."""
_LOOK_S: Final = 0.5
_SAY_S: Final = 10.0
"""After so long, what is waited for is said."""
_PLACE_S: Final = 600.0
"""So long others may hold what a run asks for."""
_START_S: Final = 120.0
"""So long the process of a worker may take to start."""
_TAIL: Final = 20
"""Lines of the output of a process that died."""
_GONE_S: Final = 10.0


def connect(address: str, name: str, code: Sequence[str] = ()) -> bool:
    """Join the cluster, unless this process has; True if it was joined here.

    Args:
        address: `auto`, `local` for one that ends with this process, or host:port.
        name: of the run.
        code: folders and Python files that processes of this run can import there.

    Raises:
        ConfigError: nobody answers there, or another version does; or there is no such code.
    """
    if ray.is_initialized():
        return False
    check_address(address)
    check_code(code)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            namespace=f"agentrl-{name}",
            log_to_driver=False,
            logging_level=logging.ERROR,
            include_dashboard=False if address == "local" else None,
            runtime_env={"py_modules": [*code]} if code else None,
        )
    except RuntimeEnvSetupError as error:
        raise ConfigError(f"ray.code: it cannot be sent ({said_in_one_line(error)})") from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"ray.address: got {address}, but no cluster can be joined there "
            f"({said_in_one_line(error)}); start one with `ray start --head`, or set it to local"
        ) from error
    # What Ray hears of other processes' ends it prints; the run says who was first.
    ray._private.worker.print_to_stdstream = _note_what_ray_hears
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray's own aborts a run where it stands
    return True


def said_in_one_line(error: BaseException) -> str:
    """What an error of Ray says."""
    return " ".join(str(error).split())


def reach_sent_code() -> None:
    """On a node: let what is in folders of `ray.code` be imported by its own name too."""
    for entry in [Path(entry) for entry in sys.path if _SENT in entry]:
        for folder in entry.iterdir():
            if folder.is_dir() and folder.name != "agentrl" and str(folder) not in sys.path:
                sys.path.append(str(folder))


def _note_what_ray_hears(data: object, **_: object) -> None:
    _LOG.debug("%s", data)


def check_address(address: str) -> None:
    """Raise ConfigError if it is none, or one where nobody answers."""
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ConfigError(f"ray.address: got {address}, expected auto, local or host:port")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except OSError as error:
        raise ConfigError(
            f"ray.address: got {address}, where nobody answers ({error}); `ray status` on the head "
            "node says its address"
        ) from error


def list_nodes(address: str, name: str) -> list[Mapping[str, float]]:
    """What each node of a cluster has; it is left again if it was joined for that."""
    is_joined_here = connect(address, name)
    try:
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]
    finally:
        if is_joined_here:
            ray.shutdown()


def check_code(code: Sequence[str]) -> None:
    """Raise ConfigError for what cannot be sent to the nodes as Python code."""
    for place in map(Path, code):
        if not (place.is_dir() or (place.is_file() and place.suffix == ".py")):
            raise ConfigError(f"ray.code: got {place}, expected a folder or a Python file")


def check_fits(bundle: Mapping[str, float], size: int) -> None:
    """Raise ConfigError if the nodes have not a `bundle` of resources for each of the workers."""
    nodes: list[Mapping[str, float]] = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    places = sum(int(min(n.get(kind, 0.0) // bundle[kind] for kind in bundle)) for n in nodes)
    if places < size:
        asked = " and ".join(f"{amount:g} {kind}" for kind, amount in bundle.items())
        raise ConfigError(
            f"trainer.ranks: {size} ranks ask for {asked} each, but the cluster's {len(nodes)} "
            f"nodes have places for {places}; take fewer ranks or add a node"
        )


def reserve(name: str, bundle: Mapping[str, float], size: int) -> PlacementGroup:
    """A place with the resources of `bundle` for each of so many workers.

    Raises:
        ConfigError: the cluster has less in all.
        RunError: others held it for too long.
    """
    check_fits(bundle, size)
    asked = {kind: amount * size for kind, amount in bundle.items()}
    group: PlacementGroup = placement_group([dict(bundle)] * size, strategy="PACK", name=name)
    since = time.monotonic()
    while not group.wait(_SAY_S):
        free = ray.available_resources()
        has = ", ".join(f"{free.get(kind, 0.0):g} of {n:g} {kind}" for kind, n in asked.items())
        said = f"{name} has waited {time.monotonic() - since:.0f} s for its places: free are {has}"
        if time.monotonic() - since > _PLACE_S:
            remove_placement_group(group)
            raise RunError(f"{said}; end what holds the others, or ask for less")
        _LOG.warning("%s", said)
    return group


def nodes_with_cpus() -> list[dict[str, Any]]:
    """The nodes that work: without accelerators first, the driver's last among its like.

    Raises:
        ConfigError: there is none.
    """
    nodes: list[dict[str, Any]] = [
        node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")
    ]
    if not nodes:
        raise ConfigError("ray.players: no node of the cluster has a CPU; add one")
    own = ray.get_runtime_context().get_node_id()
    return sorted(nodes, key=lambda n: (n["Resources"].get("GPU", 0.0), n["NodeID"] == own))


def wait_for(starting: Mapping[int, Any]) -> None:
    """Wait until workers have come up, by what each says first; say who has not.

    Raises:
        RunError: one does not.
    """
    since = time.monotonic()
    while True:
        answers = {answer: number for number, answer in starting.items()}
        _, missing = ray.wait([*answers], num_returns=len(answers), timeout=_SAY_S)
        if not missing:
            return
        first = min(answers[answer] for answer in missing)
        said = (
            f"{len(missing)} of {len(answers)} workers, worker {first} first, have waited "
            f"{time.monotonic() - since:.0f} s for their processes to start"
        )
        if time.monotonic() - since > _START_S:
            raise RunError(f"{said}; `ray status` says what their nodes do")
        _LOG.warning("%s", said)


def versions() -> dict[str, str]:
    """Of what has to be alike on all machines; nothing is imported for it."""
    found = {name: version(name) for name in ("ray", "torch")}
    own = SENT if _SENT in __file__ else version("agentrl")
    return {"Python": platform.python_version(), "agentrl": own, **found}


def check_versions(theirs: Mapping[str, str], host: str) -> None:
    """Raise ConfigError if a machine has others than this one."""
    other = [
        f"{name} {theirs.get(name)} (here {own})"
        for name, own in versions().items()
        if theirs.get(name) not in (own, SENT)
    ]
    if other:
        raise ConfigError(
            f"the node {host} has {', '.join(other)}; install the same versions on every node"
        )


def wait_for_nodes(address: str, size: int, deadline_s: float, *starters: int) -> str | None:
    """Return once so many nodes have joined, or say why that will not be.

    Args:
        address: of the head node, which may not be there yet.
        size: the number of nodes.
        deadline_s: so long they may take.
        starters: processes without which none will join.
    """
    ends, found = time.monotonic() + deadline_s, 0
    while time.monotonic() < ends:
        if gone := [pid for pid in starters if not psutil.pid_exists(pid)]:
            return f"agentrl: error: a node of Ray ended at start (process {gone[0]})"
        with contextlib.suppress(ConfigError):
            connect(address, "launch")
            found = sum(node["Alive"] for node in ray.nodes())
            if found >= size:
                return None
        time.sleep(_LOOK_S)
    return (
        f"agentrl: error: {found} of {size} nodes have joined {address} after {deadline_s:g} s; "
        "what `ray start` said stands above"
    )


class NodeWatch:
    """An actor on each node that looks at the processes of a run there."""

    def look(self, pid: int) -> str:
        """`stopped`, `gone` or nothing."""
        if not psutil.pid_exists(pid):
            return "gone"
        return "stopped" if is_stopped(pid) else ""

    def end(self, pids: Sequence[int]) -> None:
        """Kill processes and wait until they are gone."""
        found: list[psutil.Process] = []
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                os.kill(pid, signal.SIGKILL)
                found.append(psutil.Process(pid))
        psutil.wait_procs(found, timeout=_GONE_S)

    def tail(self, pid: int) -> str:
        """The last lines that a process wrote."""
        logs = Path(ray._private.worker.global_worker.node.get_logs_dir_path())
        lines: list[str] = []
        for file in sorted(logs.glob(f"worker-*-{pid}.*")):
            lines += file.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines[-_TAIL:] if not line.startswith(":"))


def watch_node(node: str) -> Any:
    """A `NodeWatch` on that node; it takes no place of others."""
    affinity = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(NodeWatch).options(num_cpus=0, scheduling_strategy=affinity).remote()
