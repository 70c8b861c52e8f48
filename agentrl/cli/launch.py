"""`agentrl launch`: a run on a cluster."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import uuid4

from pydantic import Field

from agentrl.cli.command import Arguments, JsonOption, Verb
from agentrl.config.flags import flag_of
from agentrl.config.nearest import nearest
from agentrl.errors import ConfigError, RunError
from agentrl.orchestration import launch as texts
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS, bind_envs
from agentrl.orchestration.load import load_run_config
from agentrl.run_dir import check_new_run

_ANSWER_S: Final = 120.0
"""So long a cluster may take to answer."""


class LaunchOptions(JsonOption):
    """How many nodes of which kind."""

    only_print: bool = Field(
        default=False, alias="print", description="Print the text; submit nothing."
    )
    nodes: int = Field(
        default=1, ge=1, le=10_000, description="Nodes; ray-job takes those there are."
    )
    cpus_per_node: int = Field(default=8, ge=1, description="CPUs of each node.")
    gpus_per_node: int = Field(default=0, ge=0, description="GPUs of each node.")
    server_gpus: int = Field(
        default=0, ge=0, description="GPUs of the first node that are the servers', not the ranks'."
    )
    memory_gb: int = Field(
        default=0, ge=0, description="GiB of memory of each node; 0: what the cluster gives."
    )
    partition: str = Field(default="", description="slurm: the partition.")
    hours: float = Field(
        default=0.0, ge=0, le=10_000, description="slurm: the time limit; 0: the partition's."
    )
    sbatch: str = Field(
        default="", description='slurm: more options: --sbatch="--account=a --qos=b".'
    )
    image: str = Field(default="", description="kubernetes: the container image.")
    volume: str = Field(
        default="", description="kubernetes: the volume claim that holds the runs for all pods."
    )
    address: str = Field(
        default="", description="ray-job: http://HOST:8265 of the cluster; empty: RAY_ADDRESS."
    )


_NODES = "only_print as_json server_gpus nodes cpus_per_node gpus_per_node memory_gb"
_TAKES: Mapping[str, str] = {
    "slurm": f"{_NODES} partition hours sbatch",
    "kubernetes": f"{_NODES} image volume",
    "ray-job": "only_print as_json server_gpus address",
}
"""The options that each target reads."""
_SUBMITS: Mapping[str, tuple[str, ...]] = {
    "slurm": (".slurm", "sbatch"),
    "kubernetes": (".json", "kubectl", "create", "-f"),
    "ray-job": (".sh", "ray", "job", "submit", "--no-wait"),
}
"""The ending of what is written, and the command that takes it."""


def _run_launch(options: LaunchOptions, arguments: Arguments) -> int:
    kind, file = arguments.positional[0], Path(arguments.positional[1])
    _check_target_and_options(kind, options)
    suffix, *submit = _SUBMITS[kind]
    config = load_run_config(file=file).config
    bind_envs(config, NO_OBJECTS)
    launch = _describe_launch(config, file, options)
    if kind != "ray-job":
        texts.check_room(config, launch)
    text = _write_text(kind, launch, options)
    if options.only_print:
        options.show({"target": kind, "name": launch.name, "text": text}, text.rstrip("\n"))
        return 0
    if shutil.which(submit[0]) is None:
        raise ConfigError(
            f"launch {kind}: there is no {submit[0]} on the PATH here; run it where the "
            "cluster's jobs are submitted, or add --print"
        )
    place = Path("launches", f"{launch.name}{suffix}").absolute()
    place.parent.mkdir(exist_ok=True)
    place.write_text(text, encoding="utf-8")
    answer = _submit([*submit, *_submit_arguments(kind, place, options)], place)
    data = {"target": kind, "name": launch.name, "file": str(place), "answer": answer}
    options.show(data, f"run    {launch.name}\nfile   {place}\n{answer}")
    return 0


def _check_target_and_options(kind: str, options: LaunchOptions) -> None:
    if kind not in _TAKES:
        raise ConfigError(f"launch {kind}: unknown cluster, {nearest(kind, _TAKES)}")
    for key, field in LaunchOptions.model_fields.items():
        if getattr(options, key) != field.default and key not in _TAKES[kind].split():
            raise ConfigError(f"{flag_of(key)}: got one with launch {kind}, which takes none")
    for key in ("partition", "image", "volume", "address"):
        if re.search(r"\s", getattr(options, key)):
            raise ConfigError(f"--{key}: got {getattr(options, key)!r}, expected no blanks in it")
    for word in options.sbatch.split():
        if not re.fullmatch(r"--[a-z][a-z-]*(=\S+)?", word):
            raise ConfigError(f"--sbatch: got {word!r}, expected words such as --account=a")
    for key in ("image", "volume"):
        if kind == "kubernetes" and not getattr(options, key):
            raise ConfigError(f"--{key}: got none, and pods need one; see docs/cluster.md")


def _describe_launch(config: RunConfig, file: Path, options: LaunchOptions) -> texts.Launch:
    """A run without a name gets one here, so that it keeps it when its job is queued again."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", file.stem).strip("-")[:50] or "run"
    name = config.name or f"{stem}-{uuid4().hex[:6]}"
    runs_dir = Path(config.runs_dir).absolute()
    if not (runs_dir / name / "config.toml").exists():
        check_new_run(runs_dir, name)
    return texts.Launch(
        name=name,
        file=file.absolute(),
        folder=Path.cwd(),
        runs_dir=runs_dir,
        nodes=options.nodes,
        cpus=options.cpus_per_node,
        gpus=options.gpus_per_node,
        server_gpus=options.server_gpus,
        memory_gb=options.memory_gb,
    )


def _write_text(kind: str, launch: texts.Launch, options: LaunchOptions) -> str:
    match kind:
        case "slurm":
            return texts.slurm_script(
                launch,
                programs=Path(sys.executable).parent,
                partition=options.partition,
                hours=options.hours,
                options=options.sbatch.split(),
            )
        case "kubernetes":
            toml = launch.file.read_text(encoding="utf-8")
            manifest = texts.kubernetes_manifest(
                launch, toml, image=options.image, volume=options.volume
            )
            return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        case _:
            return texts.ray_job_script(launch)


def _submit_arguments(kind: str, place: Path, options: LaunchOptions) -> list[str]:
    if kind != "ray-job":
        return [str(place)]
    address = [f"--address={options.address}"] * bool(options.address)
    devices = [f"--entrypoint-num-gpus={options.server_gpus}"] * bool(options.server_gpus)
    return [*address, *devices, "--", "bash", str(place)]


def _submit(command: list[str], place: Path) -> str:
    """What the cluster answers.

    Raises:
        RunError: it refuses, or says nothing for too long.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(
            f"{command[0]} has not answered for {_ANSWER_S:g} s; what it was given is {place}"
        ) from error
    answer = f"{done.stdout}{done.stderr}".strip()
    if done.returncode:
        said = " ".join(answer.split()) or f"exit code {done.returncode}"
        raise RunError(f"{command[0]} refused {place}: {said}")
    return answer


COMMAND = Verb(
    summary="Start a run on a cluster: TARGET is slurm, kubernetes or ray-job.",
    examples=[
        "agentrl launch slurm run.toml --print",
        "agentrl launch slurm run.toml --nodes 2 --gpus-per-node 8 --server-gpus 2 --hours 24",
        "agentrl launch kubernetes run.toml --image IMAGE --volume CLAIM --print",
        "agentrl launch ray-job run.toml --address http://127.0.0.1:8265",
    ],
    options=LaunchOptions,
    run=_run_launch,
    takes=["TARGET", "RUN.toml"],
)
