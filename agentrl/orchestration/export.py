"""A finished or a running run, given away as a Hugging Face folder."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from agentrl.engine.local.models.load import load_model
from agentrl.errors import ConfigError, RunError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.layers import Layers, config_at
from agentrl.orchestration.load import load_run_config
from agentrl.rollout import Codec
from agentrl.run_dir import RunDirectory, read_lines
from agentrl.tokens import Tokenizer
from agentrl.trainer.atomic_dir import MANIFEST
from agentrl.trainer.checkpoint import latest_valid, load_weights
from agentrl.trainer.export import export_hf, set_generation
from agentrl.trainer.lora import add_adapters

_CARD = """\
---
library_name: {library}
base_model: {base}
tags: [reinforcement-learning, agent, agentrl]
---

# {name}

{base}, trained by reinforcement learning with agentrl.

| | |
|---|---|
| environment | {envs} |
| algorithm | {algorithm} |
| steps | {steps} |
| changed when it was resumed | {changes} |
| evaluation | {evaluation} |
| run digest | `{digest}` |

The digest is of the run's configuration and of the manifest of the checkpoint that this is. Sample
with the temperature of `generation_config.json` and the chat template that lies here: the model was
trained with both.
"""


def export_run(source: str, out: Path, *, adapter: bool, runs_dir: Path) -> Path:
    """Write the newest checkpoint of a run, or the given one, as a Hugging Face folder.

    Args:
        source: a run (name, path or `last`) or the folder of a checkpoint.
        out: the new folder.
        adapter: leave LoRA adapters unmerged.
        runs_dir: where runs are, for names.

    Raises:
        ConfigError: there is no such run or checkpoint, or `out` is in the way.
        RunError: the checkpoint is broken, or its base is gone.
    """
    check_new_folder(out)
    directory, checkpoint = _resolve_run_and_checkpoint(source, runs_dir)
    loaded, layers = load_run_config(file=directory.config), Layers.read(directory)
    step = int(checkpoint.name.removeprefix("step-"))
    config = config_at(loaded, layers, step)
    base = _read_base_folder_of_checkpoint(checkpoint)
    lora = config.trainer.lora
    model = load_model(base, dtype=lora.dtype if lora.rank else "float32")
    if lora.rank:
        add_adapters(model, lora)
    elif adapter:
        raise ConfigError(
            "--adapter: got it for a run that trained all weights, so there is no adapter; leave "
            "it out"
        )
    load_weights(checkpoint, model)
    stop_ids = Codec(Tokenizer.load(base), tool_format=config.tool_format).renderer(()).stop_ids
    set_generation(model, stop_ids, config.rollout.temperature)
    # A merged model stands alone, so its card names what the user named, not a place in the cache.
    name = str(base) if adapter else config.model
    changes = [
        f"after step {layer.step}: {change}"
        for layer in layers.until(step).layers[1:]
        for change in layer.changes()
    ]
    card = _render_model_card(directory, checkpoint, config, name, changes, adapter=adapter)
    return export_hf(model, base, out, adapter=adapter, card=card)


def check_new_folder(out: Path) -> None:
    """Raise ConfigError for a place where there is something already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: is there already; name a new folder")


def _resolve_run_and_checkpoint(source: str, runs_dir: Path) -> tuple[RunDirectory, Path]:
    path = Path(source).expanduser()
    if (path / MANIFEST).is_file():
        return RunDirectory.open(runs_dir, str(path.absolute().parents[1])), path
    directory = RunDirectory.open(runs_dir, source)
    newest = latest_valid(directory.checkpoints)
    if newest is None:
        raise ConfigError(
            f"{directory.path}: has no whole checkpoint to export; a run writes one every "
            "checkpoint.every steps, and agentrl sft writes its model folder at once"
        )
    return directory, newest


def _read_base_folder_of_checkpoint(checkpoint: Path) -> Path:
    """The folder of the model that the run began with: tokenizer, shape, and LoRA's base."""
    state: Mapping[str, object] = orjson.loads((checkpoint / "state.json").read_bytes())["state"]
    base = Path(str(state.get("base", "")))
    if not (base / "config.json").is_file():
        raise RunError(
            f"{checkpoint}: belongs to the model in {base}, which is not there any more; bring it "
            "back to that place"
        )
    return base


def _render_model_card(
    directory: RunDirectory,
    checkpoint: Path,
    config: RunConfig,
    base: str,
    changes: Sequence[str],
    *,
    adapter: bool,
) -> str:
    trainer, step = config.trainer, int(checkpoint.name.removeprefix("step-"))
    lora = f", LoRA of rank {trainer.lora.rank}" if trainer.lora.rank else ""
    return _CARD.format(
        library="peft" if adapter else "transformers",
        base=base,
        name=directory.name,
        envs=", ".join(entry.label for entry in config.env),
        algorithm=f"{trainer.algorithm}{lora}, learning rate {trainer.lr:g}",
        steps=step,
        changes="; ".join(changes).replace("|", "\\|") or "nothing",
        evaluation=_describe_last_evaluation(directory, config, step),
        digest=_digest_file_contents(directory.config, checkpoint / MANIFEST),
    )


def _describe_last_evaluation(directory: RunDirectory, config: RunConfig, step: int) -> str:
    """The last held-out result until the step, else that of its own episodes.

    Where no success is defined, the reward is the result.
    """
    lines = read_lines(directory.metrics) if directory.metrics.exists() else []
    heldout = f"on {config.eval.tasks} {config.eval.split} tasks"
    for key, what in (
        ("eval/success", f"success {heldout}"),
        ("eval/reward", f"mean reward {heldout}"),
        ("success", "success of the training episodes"),
        ("reward", "mean reward of the training episodes"),
    ):
        for line in reversed(lines):
            value, done = line.get(key), line.get("step")
            if isinstance(value, float) and isinstance(done, int) and done <= step:
                return f"{what} after step {done}: {value:.3f}"
    return "none"


def _digest_file_contents(*files: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
