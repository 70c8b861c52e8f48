"""Runs on a cluster as texts: a batch script of Slurm, a RayJob of Kubernetes, a job of Ray.

    launch ── check_room ─▶ slurm_script ───────▶ sbatch    head and workers of Ray, then `train`
                         ─▶ kubernetes_manifest ▶ kubectl   KubeRay has the cluster, then `train`
                         ─▶ ray_job_script ─────▶ ray       the cluster is there, then `train`

Each begins with `train RUN.toml`, or with `train --resume` where the run is there already, so a job
that is queued once more goes on.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig

JOIN_S: Final = 300
"""So long the nodes of a Slurm job may take to join its Ray cluster."""
WARNING_S: Final = 120
"""So long before its time limit a Slurm job stops and queues itself once more."""
RETRIES: Final = 3
"""So often Kubernetes starts a failed job again."""
_VOLUME: Final = "/agentrl"
_LAUNCH: Final = "/etc/agentrl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A run and the nodes that it is to have."""

    name: str
    file: Path
    """Its configuration."""
    folder: Path
    """The working folder."""
    runs_dir: Path
    nodes: int = 1
    cpus: int = 8
    """Of each node."""
    gpus: int = 0
    """Of each node."""
    server_gpus: int = 0
    """Of the first node, kept for the process that samples and the servers that it starts."""
    memory_gb: int = 0
    """Of each node; 0: what the cluster gives."""


def check_room(config: RunConfig, launch: Launch) -> None:
    """Raise ConfigError if the ranks need more than the nodes have."""
    trainer, engine = config.trainer, config.engine
    if trainer.executor not in (None, "ray"):
        raise ConfigError(
            f"trainer.executor: got {trainer.executor}, but on a cluster ranks are actors of Ray; "
            "leave it out"
        )
    if launch.server_gpus > launch.gpus:
        raise ConfigError(
            f"--server-gpus: got {launch.server_gpus}, but a node has {launch.gpus}; "
            "give --gpus-per-node"
        )
    has = {"CPU": launch.nodes * launch.cpus}
    asked = {"CPU": trainer.ranks * config.ray.cpus}
    if trainer.device != "cpu":
        has["GPU"] = launch.nodes * launch.gpus - launch.server_gpus
        asked["GPU"] = trainer.ranks
        starts_servers = engine.kind != "local" and not engine.sglang.url
        if starts_servers and launch.gpus and not launch.server_gpus and not engine.share_device:
            raise ConfigError(
                f"--server-gpus: got 0, but servers of {engine.kind} sample on the first node and "
                "would meet ranks on its GPUs; keep some for them"
            )
    for kind, amount in asked.items():
        if amount > has[kind]:
            raise ConfigError(
                f"trainer.ranks: {trainer.ranks} ranks ask for {amount:g} {kind}, but --nodes "
                f"{launch.nodes} leaves {has[kind]}; give more nodes, or more of each "
                f"(--{kind.lower()}s-per-node)"
            )


def slurm_script(
    launch: Launch,
    *,
    programs: Path,
    partition: str = "",
    hours: float = 0.0,
    options: Sequence[str] = (),
) -> str:
    """A script for sbatch.

    Args:
        launch: what to start.
        programs: the folder of `agentrl`, `ray` and `python` on the nodes.
        partition: where; empty: Slurm's default.
        hours: the time limit; 0: that of the partition.
        options: more of sbatch's, such as `--account=a`.
    """
    asked = [
        f"--job-name=agentrl-{launch.name}",
        f"--output=agentrl-{launch.name}-%j.log",
        "--open-mode=append",
        f"--nodes={launch.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={launch.cpus}",
        *[f"--gpus-per-node={launch.gpus}"] * bool(launch.gpus),
        *[f"--mem={launch.memory_gb}G"] * bool(launch.memory_gb),
        *[f"--partition={partition}"] * bool(partition),
        *[f"--time={max(1, round(hours * 60))}"] * bool(hours),
        "--requeue",
        f"--signal=B:USR1@{WARNING_S}",
        *options,
    ]
    head = "\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in asked)])
    return f"{head}\n" + _write_script(
        launch,
        ["launch_command.sh", "launch_slurm.sh"],
        programs=programs,
        nodes=launch.nodes,
        cpus=launch.cpus,
        gpus=launch.gpus,
        server_gpus=launch.server_gpus,
        join_s=JOIN_S,
    )


def ray_job_script(launch: Launch) -> str:
    """What `ray job submit` runs on a cluster that is there and has the same files."""
    run = 'choose_command && exec "${command[@]}"'
    return "#!/bin/bash\n" + _write_script(launch, ["launch_command.sh", run], address="auto")


def kubernetes_manifest(launch: Launch, toml: str, *, image: str, volume: str) -> dict[str, object]:
    """A RayJob of KubeRay, and a ConfigMap with what it runs; the runs are on the volume.

    Args:
        launch: what to start.
        toml: the text of the configuration.
        image: has agentrl with its extras `train` and `ray`, and `ray[default]`.
        volume: a claim that all pods can write; it is their working folder.
    """
    name = re.sub(r"[^a-z0-9]+", "-", launch.name.lower()).strip("-")[:38].strip("-")
    named = {"name": f"agentrl-{name}", "labels": {"app.kubernetes.io/name": "agentrl"}}
    there = Launch(
        name=launch.name,
        file=Path(_VOLUME, f"{launch.name}.toml"),
        folder=Path(_VOLUME),
        runs_dir=Path(_VOLUME, "runs"),
    )
    # A configuration's relative paths begin where it lies: so it is to lie on the volume.
    script = f"cp {_LAUNCH}/run.toml {there.file} || exit 1\n{ray_job_script(there)}"
    template = _make_pod_template(launch, str(named["name"]), image=image, volume=volume)
    workers = {
        "groupName": "workers",
        "replicas": launch.nodes - 1,
        "minReplicas": launch.nodes - 1,
        "maxReplicas": launch.nodes - 1,
        "rayStartParams": {},
        "template": template,
    }
    cluster = {
        "headGroupSpec": {"rayStartParams": {"dashboard-host": "0.0.0.0"}, "template": template},
        "workerGroupSpecs": [workers] * (launch.nodes > 1),
    }
    job = {
        "submissionMode": "K8sJobMode",
        "entrypoint": f"bash {_LAUNCH}/run.sh",
        **({"entrypointNumGpus": launch.server_gpus} if launch.server_gpus else {}),
        "backoffLimit": RETRIES,
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": cluster,
    }
    files = {"run.toml": toml, "run.sh": script}
    items = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": files},
        {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": named, "spec": job},
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _make_pod_template(launch: Launch, name: str, *, image: str, volume: str) -> dict[str, object]:
    resources: dict[str, object] = {"cpu": launch.cpus}
    if launch.gpus:
        resources["nvidia.com/gpu"] = launch.gpus
    if launch.memory_gb:
        resources["memory"] = f"{launch.memory_gb}Gi"
    container = {
        "name": "ray",
        "image": image,
        "workingDir": _VOLUME,
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [
            {"name": "runs", "mountPath": _VOLUME},
            {"name": "launch", "mountPath": _LAUNCH},
        ],
    }
    volumes = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": volume}},
        {"name": "launch", "configMap": {"name": name}},
    ]
    return {"spec": {"containers": [container], "volumes": volumes}}


def _write_script(launch: Launch, parts: Sequence[str], **more: object) -> str:
    """Assignments, and then parts that are commands or the names of files beside this one."""
    known = {"file": launch.file, "folder": launch.folder, "name": launch.name}
    known |= {"runs": launch.runs_dir, **more}
    lines = [f"{name}={shlex.quote(str(value))}" for name, value in known.items()]
    for part in parts:
        lines.append(Path(__file__).with_name(part).read_text() if ".sh" in part else part)
    return "\n".join(lines).rstrip() + "\n"
