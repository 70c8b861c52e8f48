"""How good is the episode, in the eyes of a reward model?"""

import json
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from agentrl.config.anchor import REWARD_MODEL
from agentrl.engine.local.models.resolve import check_folder
from agentrl.errors import ConfigError
from agentrl.extras import TRAIN, require
from agentrl.types import EpisodeView, Message, Score
from agentrl.workers import WorkerPool


class RewardModel:
    """A sequence-classification model with one label, in a process of its own.

        RewardModel("path/to/model", device="cpu")      --verifier reward_model:path/to/model@cpu

    The score is the sigmoid of the model's logit, or with `score_range` the logit itself, which
    must lie within. The whole conversation is rendered with the model's own chat template; no text
    of it can become a control token. The process starts with the first episode, loads the model
    once and scores one episode after the other; one that takes longer than `timeout_s`, waiting
    and loading included, is Invalid.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str = "cpu",
        score_range: tuple[float, float] | None = None,
        success_at: float | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        """Raises ConfigError unless the folder holds such a model and torch is installed."""
        require("a reward model", *TRAIN)
        self.folder = Path(folder).expanduser().resolve()
        self.device = device
        self.timeout_s = timeout_s
        self.score_range = score_range or (0.0, 1.0)
        self.success_at = success_at
        self._squash = score_range is None
        _check_reward_model_folder(self.folder)

    async def score_episode(self, view: EpisodeView) -> Score:
        """Ask the model; the logit is logged beside the score."""
        logit = await self._get_reward_model_pool.call(
            _score_messages, str(self.folder), self.device, view.messages, timeout_s=self.timeout_s
        )
        value = 1 / (1 + math.exp(-max(-500.0, logit))) if self._squash else logit
        return Score(value=value, parts={"logit": logit})

    def close(self) -> None:
        """End the process; the next episode starts another."""
        self.__dict__.pop("_get_reward_model_pool", self._get_reward_model_pool).close()

    @cached_property
    def _get_reward_model_pool(self) -> WorkerPool:
        return WorkerPool(1, "reward model")


def from_text(text: str) -> RewardModel:
    """The reward model of `reward_model:FOLDER` or `reward_model:FOLDER@DEVICE`."""
    folder, _, device = text.removeprefix(REWARD_MODEL).partition("@")
    return RewardModel(folder, device=device or "cpu")


def _score_messages(folder: str, device: str, messages: Sequence[Message]) -> float:
    from agentrl.engine.local.reward import reward  # torch: in the model's process only

    return reward(folder, device, messages)


def _check_reward_model_folder(folder: Path) -> None:
    check_folder(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    labels = len(config.get("id2label") or "??")
    heads = [str(name) for name in config.get("architectures") or ()]
    if labels != 1 or not any(name.endswith("ForSequenceClassification") for name in heads):
        raise ConfigError(
            f"{folder} is a {', '.join(heads) or 'model'} with {labels} labels, expected a "
            "sequence-classification model with one label; give the folder of a reward model"
        )
