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
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from agentrl.errors import RunError
from agentrl.runs.disk import free_bytes
from agentrl.trainer.export import refuse_non_finite
from agentrl.trainer.folders import (
    check_manifest,
    config_hash,
    disk_errors,
    read_manifest,
    replace_folder,
    unfinished_folder,
    write_manifest,
)
from agentrl.trainer.trainer import Trainer
from agentrl.types import Json

_LOG = logging.getLogger(__name__)
_SPARE_BYTES = 2**24


def save_checkpoint(
    folder: Path, trainer: Trainer, *, step: int, state: Mapping[str, Json], keep: int = 2
) -> Path:
    """Write `folder/step-<step>` with the caller's `state`, then drop all but the newest `keep`.

    Only older checkpoints are dropped, and only once the new one is on the disk. Raises RunError if
    a weight or optimizer value is not finite, or the disk is too full.
    """
    _check_finite(trainer)
    _check_space(folder, trainer)
    target = folder / f"step-{step:06d}"
    with unfinished_folder(target) as unfinished, disk_errors(target):
        _save_tensors(trainer, unfinished / "weights")
        (unfinished / "state.json").write_bytes(orjson.dumps(_host_state(trainer, state)))
        write_manifest(unfinished, config_hash(trainer.config))
        replace_folder(unfinished, target)
    _drop_older(folder, target, keep)
    return target


def load_checkpoint(path: Path, trainer: Trainer) -> Mapping[str, Json]:
    """Load weights, optimizer, counters and random states; returns the caller's `state`.

    Raises RunError naming the file if one is missing, cut or altered, or if the checkpoint is of
    another model.
    """
    manifest = check_manifest(path)
    if manifest.config_hash != config_hash(trainer.config):
        _LOG.warning("%s was written under other trainer settings; the new ones count", path)
    _load_tensors(trainer, path / "weights")
    host = orjson.loads((path / "state.json").read_bytes())
    trainer.step = host["trainer"]["step"]
    trainer.num_skipped = host["trainer"]["num_skipped"]
    _set_random_states(host["random"])
    return cast(Mapping[str, Json], host["state"])


def latest_valid(folder: Path) -> Path | None:
    """The newest checkpoint whose files agree with its manifest; broken ones cost a warning."""
    for path in sorted(folder.glob("step-*"), key=_step_of, reverse=True):
        try:
            check_manifest(path)
        except RunError as error:
            _LOG.warning("skipping a broken checkpoint: %s", error)
        else:
            return path
    return None


def _save_tensors(trainer: Trainer, folder: Path) -> None:
    with _single_process():
        save(_tensors(trainer), checkpoint_id=folder, no_dist=True)


def _load_tensors(trainer: Trainer, folder: Path) -> None:
    tensors = _tensors(trainer)
    try:
        with _single_process():
            load(tensors, checkpoint_id=folder, no_dist=True)
    except (CheckpointException, RuntimeError, ValueError) as error:
        raise RunError(
            f"{folder} does not fit the model ({str(error).strip().splitlines()[-1]}); resume with "
            "the model that the run began with"
        ) from error
    for name, (model, optimizer) in _trained(trainer).items():
        set_state_dict(
            model,
            optimizer,
            model_state_dict=tensors[f"{name}model"],
            optim_state_dict=tensors[f"{name}optimizer"],
            options=_options(trainer),
        )


def _trained(trainer: Trainer) -> dict[str, tuple[nn.Module, torch.optim.Optimizer]]:
    """By the prefix of their names in a checkpoint."""
    trained: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {
        "": (trainer.model, trainer.optimizer)
    }
    if trainer.critic is not None:
        trained["critic_"] = (trainer.critic.model, trainer.critic.optimizer)
    return trained


def _options(trainer: Trainer) -> StateDictOptions:
    lora = trainer.adapter is not None
    return StateDictOptions(ignore_frozen_params=lora, strict=not lora)


def _tensors(trainer: Trainer) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for prefix, (model, optimizer) in _trained(trainer).items():
        fresh = not optimizer.state
        weights, moments = get_state_dict(model, optimizer, options=_options(trainer))
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
def _single_process() -> Generator[None, None, None]:
    """DCP warns that there is no process group; there is none on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _host_state(trainer: Trainer, state: Mapping[str, Json]) -> dict[str, object]:
    return {
        "state": dict(state),
        "trainer": {"step": trainer.step, "num_skipped": trainer.num_skipped},
        "random": _random_states(),
    }


def _random_states() -> dict[str, object]:
    # The legacy generator is what libraries draw from when they draw without asking.
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "numpy": [str(kind), np.asarray(keys).tolist(), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def _set_random_states(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(torch.tensor(list(bytes.fromhex(states["torch"])), dtype=torch.uint8))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    version, values, gauss = states["python"]
    random.setstate((version, tuple(values), gauss))


def _check_finite(trainer: Trainer) -> None:
    for prefix, (model, optimizer) in _trained(trainer).items():
        for name, parameter in model.named_parameters():
            refuse_non_finite(f"{prefix}{name}", parameter)
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    refuse_non_finite(f"{key} of {prefix}{name}", value)


def _check_space(folder: Path, trainer: Trainer) -> None:
    parameters = [p for model, _ in _trained(trainer).values() for p in model.parameters()]
    weights = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    # The weights and AdamW's two moments.
    need, free = 3 * weights + _SPARE_BYTES, free_bytes(folder)
    if free < need:
        raise RunError(
            f"{folder} has {free / 1e6:.0f} MB of free disk space and a checkpoint needs "
            f"{need / 1e6:.0f} MB; free some space and resume"
        )


def _drop_older(folder: Path, newest: Path, keep: int) -> None:
    older = [path for path in folder.glob("step-*") if _step_of(path) < _step_of(newest)]
    whole = [path for path in older if read_manifest(path) is not None]
    kept = sorted(whole, key=_step_of, reverse=True)[: max(0, keep - 1)]
    for path in older:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _step_of(path: Path) -> int:
    digits = path.name.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1
