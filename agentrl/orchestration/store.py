"""What a run leaves on disk, in an order that a kill at any moment cannot spoil.

    episodes of step k  →  metrics line k  →  checkpoint k (when due)

A checkpoint is the last to appear, so all that it stands for is there. Resuming takes the newest
valid checkpoint and removes what lies beyond it; those steps are done again from their start.
"""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from agentrl.config.nearest import nearest
from agentrl.errors import ConfigError, RunError
from agentrl.orchestration.config import CheckpointConfig
from agentrl.orchestration.fingerprints import Fingerprints
from agentrl.rollout import Collected
from agentrl.run_dir import EpisodesWriter, EventsWriter, MetricsWriter, RunDirectory
from agentrl.trainer.checkpoint import latest_valid
from agentrl.trainer.protocol import Trainer
from agentrl.types import Json

NO_METRICS: Mapping[str, float] = {}


class RunStore:
    """Writes the files of one run."""

    def __init__(
        self,
        directory: RunDirectory,
        *,
        base_model: Path,
        config: CheckpointConfig,
        events: EventsWriter,
        prints: Fingerprints,
    ) -> None:
        """`base_model` is the folder that the run starts from; a resumed run needs the same."""
        self._prints = prints
        self.directory = directory
        self._base_model = base_model
        self._config = config
        self._metrics = MetricsWriter(directory.metrics)
        self._events = events
        self._episodes = EpisodesWriter(directory.episodes, run=directory.name)

    def episodes_file(self, step: int) -> Path:
        """Where the episodes of a training step are, or will be."""
        return self._episodes.path(step)

    def write_step(self, step: int, metrics: Mapping[str, float], collected: Collected) -> None:
        """The episodes of a step, scored, stopped and failed, then its line of metrics.

        Raises ConfigError if `checkpoint.best` is no metric; an evaluation need not be due.
        """
        best = self._config.best
        if best and best not in metrics and not best.startswith("eval/"):
            raise ConfigError(f"checkpoint.best: got {best!r}, {nearest(best, metrics)}")
        episodes = [*collected.scored, *collected.stopped, *collected.invalid]
        self._episodes.write(step, episodes)
        self._metrics.write(step, metrics)

    def write_eval(self, step: int, collected: Collected) -> None:
        """The episodes of an evaluation."""
        self._episodes.write(step, [*collected.episodes, *collected.invalid], kind="eval")

    def event(self, kind: str, **fields: object) -> None:
        """A line of events.jsonl."""
        self._events.write(kind, **fields)

    def save(
        self,
        trainer: Trainer,
        step: int,
        version: int,
        metrics: Mapping[str, float] = NO_METRICS,
        sampler: str = "",
        recipe: str = "",
        groups: str = "",
    ) -> None:
        """A checkpoint of all that the next step depends on; `metrics` say how good it is.

        `sampler` is the state of the sampler of tasks, `recipe` of what prepares batches, `groups`
        says which groups are drawn and not trained on.
        """
        state: dict[str, Json] = {
            "step": step,
            "version": version,
            "sampler": sampler,
            "recipe": recipe,
            "groups": groups,
            "model": self._digest_base_model_files,
            "base": str(self._base_model),
            "data": self._prints.data,
            "sources": self._prints.sources,
        }
        trainer.save(
            self.directory.checkpoints,
            step=step,
            state=state,
            keep=self._config.keep,
            metric=metrics.get(self._config.best),
            background=self._config.background,
        )
        self.event("checkpoint", step=step)

    def restore(self, trainer: Trainer) -> tuple[int, int, str, str, str]:
        """Load the newest valid checkpoint and drop what lies beyond it.

        Returns the step to go on from, the policy version that it was sampled under, and the states
        of the sampler, of the recipe and of the groups.
        """
        checkpoints = self.directory.checkpoints
        newest = latest_valid(checkpoints)
        if newest is None and any(checkpoints.glob("step-*")):
            raise RunError(
                f"{checkpoints} holds checkpoints but none is whole; restore one from a copy "
                "or remove the folder to begin again"
            )
        state: Mapping[str, Json] = trainer.load(newest) if newest else {}
        if newest and state.get("model") != self._digest_base_model_files:
            raise ConfigError(
                f"model {self._base_model}: is not what the run was started from; a resumed run "
                "needs it unchanged, for its tokenizer and its reference"
            )
        step, version = (int(str(state.get(key, 0))) for key in ("step", "version"))
        self._metrics.truncate_after(step)
        self._episodes.truncate_after(step)
        sampler, recipe, groups = (str(state.get(k, "")) for k in ("sampler", "recipe", "groups"))
        return step, version, sampler, recipe, groups

    @cached_property
    def _digest_base_model_files(self) -> str:
        """Of the base model's files: names, sizes, and how each begins."""
        digest = hashlib.blake2b(digest_size=12)
        for path in sorted(p for p in self._base_model.iterdir() if p.is_file()):
            digest.update(f"{path.name}:{path.stat().st_size}:".encode())
            with path.open("rb") as file:
                digest.update(file.read(1 << 20))
        return digest.hexdigest()

    def close(self) -> None:
        """Close the metrics."""
        self._metrics.close()
