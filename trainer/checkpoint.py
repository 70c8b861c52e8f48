"""Checkpoints that are there whole or not at all.

    checkpoints/step-000012/  weights/ (torch DCP: model and optimizer)  state.json  manifest.json

A checkpoint is written beside its final name, brought to the disk and renamed. `manifest.json` has
the size and hash of every file; a checkpoint whose files differ from it is not loaded. With LoRA
it holds the adapters alone; what they belong to is in the state that the caller gives.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import logging
import random
import shutil
import warnings
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import orjson
import torch
from torch import nn
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from agentrl.errors import RunError
from agentrl.run_dir.writing import free_bytes
from agentrl.trainer.atomic_dir import (
    check_manifest,
    config_hash,
    disk_errors,
    read_manifest,
    replace_folder,
    unfinished_folder,
    unfinished_path,
    write_manifest,
)
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.export import not_finite
from agentrl.trainer.fsdp import local
from agentrl.trainer.parallel_dims import Ranks
from agentrl.types import Json

if TYPE_CHECKING:
    from concurrent.futures import Future

    from agentrl.trainer.critic import Critic
    from agentrl.trainer.first_update_check import GapGate

_LOG = logging.getLogger(__name__)
_SPARE_BYTES = 2**24
_PLACES = (
    "activation_checkpointing",
    "activation_offload",
    "device",
    "offload",
    "rank_timeout_s",
    "ranks",
    "replicate",
    "sequence_parallel",
    "token_budget",
)


class Saved(Protocol):
    """What a checkpoint is made of: a trainer, or a critic that lies apart from one."""

    step: int
    attempted: int
    num_skipped: int
    saving: "Future[None] | None"

    @property
    def config(self) -> TrainerConfig:
        """Its settings."""
        ...

    @property
    def ranks(self) -> Ranks:
        """Each writes its own part."""
        ...

    @property
    def model(self) -> nn.Module:
        """Whose parameters are saved."""
        ...

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Of these parameters."""
        ...

    @property
    def critic(self) -> "Critic | None":
        """What is saved beside them."""
        ...

    @property
    def adapter(self) -> object | None:
        """None: all of the model is trained."""
        ...

    @property
    def gate(self) -> "GapGate":
        """Its alarms are counted on."""
        ...

    def finish_saving(self) -> None:
        """Wait for what is written in the background."""
        ...


def save_checkpoint(
    trainer: Saved,
    folder: Path,
    *,
    step: int,
    state: Mapping[str, Json],
    keep: int = 2,
    metric: float | None = None,
    background: bool = False,
) -> Path:
    """Write `folder/step-<step>` with the caller's `state`, then drop older ones.

    Those that stay are the newest `keep` and the one whose `metric` is highest. A broken checkpoint
    and one that is not there whole count for nothing. In the background a copy of everything is
    written while training goes on; what goes wrong there is raised by the trainer's next call. With
    several ranks each writes its own shards, and all of them call this.

    Raises RunError if a weight or optimizer value is not finite, or the disk is too full.
    """
    trainer.finish_saving()
    ranks = trainer.ranks
    _check_trainer_is_finite(trainer)
    _check_disk_has_space(folder, trainer)
    tensors = _collect_tensors(trainer)
    job = _Job(
        target=folder / f"step-{step:06d}",
        tensors=tree_map(_copy_tensors_to_host, tensors) if background else tensors,
        host=orjson.dumps(_collect_state_beside_tensors(trainer, state)),
        settings=_hash_settings(trainer.config),
        metric=metric,
        keep=keep,
        ranks=ranks,
    )
    if background:
        executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        future = executor.submit(job.write)
        executor.shutdown(wait=False)
        trainer.saving = future
    else:
        job.write()
    return job.target


def load_checkpoint(trainer: Saved, path: Path) -> Mapping[str, Json]:
    """Load weights, optimizer, counters and random states; returns the caller's `state`.

    Ranks and their number need not be those that wrote it. Raises RunError naming the file if one
    is missing, cut or altered, or if the checkpoint is of another model.
    """
    trainer.finish_saving()
    manifest, fault = None, None
    if trainer.ranks.rank == 0:
        try:
            manifest = check_manifest(path)
        except RunError as error:
            fault = str(error)
    if (fault := trainer.ranks.agree(fault)) is not None:
        raise RunError(fault)
    if manifest and manifest.config_hash != _hash_settings(trainer.config):
        _LOG.warning("%s was written under other trainer settings; the new ones count", path)
    _load_tensors_into_trainer(trainer, path / "weights")
    host = orjson.loads((path / "state.json").read_bytes())
    trainer.step = host["trainer"]["step"]
    trainer.attempted = host["trainer"]["attempted"]
    trainer.num_skipped = host["trainer"]["num_skipped"]
    if trainer.critic is not None:
        trainer.critic.num_skipped = host["trainer"]["critic_skipped"]
    trainer.gate.restore(host["trainer"]["gate"])
    set_random_states(host["random"])
    return cast(Mapping[str, Json], host["state"])


def load_weights(path: Path, model: nn.Module) -> None:
    """Load what a checkpoint has of a model's trained weights, and nothing else of it.

    Raises RunError as `load_checkpoint` does.
    """
    check_manifest(path)
    trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    _check_tensors_fit(path / "weights", {"model": trained})
    with _without_dcp_warning():
        load({"model": trained}, checkpoint_id=path / "weights", no_dist=True)


def latest_valid(folder: Path) -> Path | None:
    """The newest checkpoint whose files agree with its manifest; broken ones cost a warning."""
    for path in sorted(folder.glob("step-*"), key=_parse_step, reverse=True):
        try:
            check_manifest(path)
        except RunError as error:
            _LOG.warning("skipping a broken checkpoint: %s", error)
        else:
            return path
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is left to do once everything is known; safe to do while training goes on."""

    target: Path
    tensors: dict[str, Any]
    host: bytes
    settings: str
    metric: float | None
    keep: int
    ranks: Ranks

    def write(self) -> None:
        """Every rank writes its tensors, the first one the rest; all fail if one does."""
        fault = None
        with ExitStack() as stack:
            unfinished = unfinished_path(self.target)
            if self.ranks.rank == 0:
                stack.enter_context(unfinished_folder(self.target))
            self.ranks.agree(None)  # the folder is there now
            try:
                with disk_errors(self.target):
                    with _without_dcp_warning():
                        save(
                            self.tensors,
                            checkpoint_id=(unfinished / "weights"),
                            process_group=self.ranks.saving,
                            no_dist=self.ranks.size == 1,
                        )
                    if self.ranks.rank == 0:
                        (unfinished / "state.json").write_bytes(self.host)
                        write_manifest(unfinished, self.settings, self.metric)
                        replace_folder(unfinished, self.target)
                        _delete_older_checkpoints(self.target.parent, self.target, self.keep)
            except RunError as error:
                fault = str(error)
            if (fault := self.ranks.agree(fault)) is not None:
                raise RunError(fault)


def _copy_tensors_to_host(value: object) -> object:
    """A tensor in host memory that training does not change."""
    if isinstance(value, DTensor):
        local = value.to_local().to("cpu", copy=True)
        return DTensor.from_local(
            local,
            value.device_mesh,
            value.placements,
            run_check=False,
            shape=value.shape,
            stride=value.stride(),
        )
    return value.to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _load_tensors_into_trainer(trainer: Saved, folder: Path) -> None:
    tensors = _collect_tensors(trainer)
    _check_tensors_fit(folder, tensors)
    with _without_dcp_warning():
        load(tensors, checkpoint_id=folder, no_dist=trainer.ranks.size == 1)
    for name, (model, optimizer) in _list_trained(trainer).items():
        # A checkpoint has the rate, the decay and the betas too; those of the configuration count.
        settings = [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        set_state_dict(
            model,
            optimizer,
            model_state_dict=tensors[f"{name}model"],
            optim_state_dict=tensors[f"{name}optimizer"],
            options=_make_dcp_options(trainer),
        )
        for group, own in zip(optimizer.param_groups, settings, strict=True):
            group.update(own)


def _check_tensors_fit(folder: Path, tensors: dict[str, Any]) -> None:
    """Raise RunError naming a tensor that the checkpoint lacks or has in another shape."""
    there = FileSystemReader(folder).read_metadata().state_dict_metadata
    ours = flatten_state_dict(tensors)[0]
    for name, tensor in ours.items():
        stored = there.get(name)
        theirs = stored.size if isinstance(stored, TensorStorageMetadata) else None
        size = tensor.shape if isinstance(tensor, torch.Tensor) else None
        if stored is None or theirs != size:
            got = "is missing" if stored is None else f"has shape {_say_shape(theirs)}"
            raise RunError(
                f"{folder} does not fit the model ({name} {got}, expected {_say_shape(size)}); "
                "resume with the model and the kind of training that the run began with"
            )


def _say_shape(size: torch.Size | None) -> str:
    return "no tensor" if size is None else str(tuple(size))


def _list_trained(trainer: Saved) -> dict[str, tuple[nn.Module, torch.optim.Optimizer]]:
    """By the prefix of their names in a checkpoint."""
    trained: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {
        "": (trainer.model, trainer.optimizer)
    }
    if trainer.critic is not None:
        trained["critic_"] = (trainer.critic.model, trainer.critic.optimizer)
    return trained


def _make_dcp_options(trainer: Saved) -> StateDictOptions:
    lora = trainer.adapter is not None
    return StateDictOptions(ignore_frozen_params=lora, strict=not lora)


def _collect_tensors(trainer: Saved) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for prefix, (model, optimizer) in _list_trained(trainer).items():
        fresh = not optimizer.state
        weights, moments = get_state_dict(model, optimizer, options=_make_dcp_options(trainer))
        if fresh:
            # DCP fills an empty optimizer by a step of rate 0, which AdamW would count.
            for state in optimizer.state.values():
                state["step"].zero_()
        # A frozen parameter that is tied to another comes under its second name all the same.
        if trainer.adapter is not None:
            trained = {name for name, p in model.named_parameters() if p.requires_grad}
            weights = {name: tensor for name, tensor in weights.items() if name in trained}
        tensors |= {f"{prefix}model": weights, f"{prefix}optimizer": moments}
    return tensors


@contextmanager
def _without_dcp_warning() -> Generator[None, None, None]:
    """DCP warns that there is no process group; there is none on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _collect_state_beside_tensors(trainer: Saved, state: Mapping[str, Json]) -> dict[str, object]:
    return {
        "state": dict(state),
        "trainer": {
            "step": trainer.step,
            "attempted": trainer.attempted,
            "num_skipped": trainer.num_skipped,
            "critic_skipped": trainer.critic.num_skipped if trainer.critic else 0,
            "gate": trainer.gate.state(),
        },
        "random": random_states(),
    }


def random_states() -> dict[str, object]:
    """Those of this process's libraries, as plain data."""
    # The legacy generator is what libraries draw from when they draw without asking.
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "numpy": [str(kind), np.asarray(keys).tolist(), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def set_random_states(states: Mapping[str, Any]) -> None:
    """Put them back."""
    torch.set_rng_state(torch.tensor(list(bytes.fromhex(states["torch"])), dtype=torch.uint8))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    version, values, gauss = states["python"]
    random.setstate((version, tuple(values), gauss))


def _check_trainer_is_finite(trainer: Saved) -> None:
    """Every rank looks at what it holds, and all of them name the same tensor."""
    names: list[str] = []
    broken: list[float] = []
    for prefix, (model, optimizer) in _list_trained(trainer).items():
        for name, parameter in model.named_parameters():
            moments = optimizer.state.get(parameter, {})
            for key, value in {"": parameter, **moments}.items():
                if isinstance(value, torch.Tensor):
                    names.append(f"{key} of {prefix}{name}" if key else f"{prefix}{name}")
                    broken.append(float(not torch.isfinite(local(value)).all()))
    found: list[int] = np.flatnonzero(trainer.ranks.sum_(np.array(broken))).tolist()
    if found:
        raise not_finite(names[found[0]])


def _check_disk_has_space(folder: Path, trainer: Saved) -> None:
    parameters = [p for model, _ in _list_trained(trainer).values() for p in model.parameters()]
    weights = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    # The weights and AdamW's two moments.
    need, first = 3 * weights + _SPARE_BYTES, trainer.ranks.rank == 0
    free = float(trainer.ranks.sum_(np.array([float(free_bytes(folder)) if first else 0.0]))[0])
    if free < need:
        raise RunError(
            f"{folder} has {free / 1e6:.0f} MB of free disk space and a checkpoint needs "
            f"{need / 1e6:.0f} MB; free some space and resume"
        )


def _delete_older_checkpoints(folder: Path, newest: Path, keep: int) -> None:
    older = [path for path in folder.glob("step-*") if _parse_step(path) < _parse_step(newest)]
    manifests = {path: read_manifest(path) for path in [newest, *older]}
    whole = sorted((path for path in older if manifests[path]), key=_parse_step, reverse=True)
    kept = whole[: max(0, keep - 1)]
    scores = {p: m.metric for p, m in manifests.items() if m and m.metric is not None}
    if scores:
        kept.append(max(scores, key=lambda path: (scores[path], _parse_step(path))))
    for path in older:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _hash_settings(config: TrainerConfig) -> str:
    """The hash of what the weights depend on: where and in how many processes is no part of it."""
    plain = TrainerConfig()
    return config_hash(config.model_copy(update={key: getattr(plain, key) for key in _PLACES}))


def _parse_step(path: Path) -> int:
    digits = path.name.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1
