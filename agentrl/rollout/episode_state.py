"""What an episode has so far, turn by turn, and the record that it becomes."""

import math
import time
from dataclasses import dataclass, field, replace

from agentrl.envs import ToolEnv, Transition
from agentrl.rollout.episode_record import Segments
from agentrl.types import (
    AssistantTurn,
    Completion,
    Episode,
    EpisodeStop,
    Invalid,
    Message,
    Outcome,
    Score,
    Task,
    TurnRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpec:
    """Which episode to run: everything that its record says before it starts."""

    id: str
    env: str
    task: Task
    split: str
    group: int
    member: int
    attempt: int
    seed: int


@dataclass(slots=True)
class Running:
    """Kept outside the loop, so that a failure loses nothing."""

    segments: Segments
    env: ToolEnv | None = None
    first: tuple[Message, ...] = ()
    """What the environment began with."""
    turns: list[TurnRecord] = field(default_factory=list[TurnRecord])
    """One per completion, those that no environment answered (summaries) too."""
    last: AssistantTurn | None = None
    """The last turn that the environment got."""
    advancing_since: float | None = None
    """When the environment began to answer the last turn; None once its answer is booked."""
    stop: EpisodeStop | None = None
    outcome: Outcome | None = None
    score_s: float = 0.0
    messages: tuple[Message, ...] = ()
    answer: object = None

    def book_sampled(self, completion: Completion, seconds: float) -> None:
        """Begin a turn's record; it is there should the environment be cut off."""
        self.turns.append(
            TurnRecord(
                num_sampled=len(completion.ids_T),
                cached_tokens=completion.cached_tokens,
                generate_s=seconds,
            )
        )

    def book(self, transition: Transition) -> None:
        """Add to the last turn what the environment made of it."""
        assert self.advancing_since is not None
        sampled = self.turns[-1]
        self.turns[-1] = TurnRecord(
            num_sampled=sampled.num_sampled,
            cached_tokens=sampled.cached_tokens,
            generate_s=sampled.generate_s,
            reward=transition.reward,
            parts=transition.parts,
            state_key=transition.state_key,
            num_calls=transition.num_calls,
            call_errors=transition.call_errors,
            environment_s=time.perf_counter() - self.advancing_since,
        )
        self.advancing_since = None

    def episode(self, spec: EpisodeSpec, *, wall_s: float) -> Episode:
        """The finished record; the score is booked on the last turn."""
        outcome = self.outcome or Invalid(reason="the episode was not scored", blame="environment")
        turns = self.turns or [TurnRecord()]
        total = sum(turn.reward for turn in turns)
        if isinstance(outcome, Score) and not math.isfinite(total + outcome.value):
            outcome = Invalid(
                reason=f"the turns' rewards ({total:g}) and the score ({outcome.value:g}) have no "
                "finite sum",
                blame="environment",
            )
        if isinstance(outcome, Score):
            last = replace(
                turns[-1],
                reward=turns[-1].reward + outcome.value,
                parts={**turns[-1].parts, **outcome.parts},
            )
            turns = [*turns[:-1], last]
        invalid = isinstance(outcome, Invalid)
        return Episode(
            id=spec.id,
            env=spec.env,
            task=spec.task,
            split=spec.split,
            group=spec.group,
            member=spec.member,
            attempt=spec.attempt,
            seed=spec.seed,
            segments=self.segments.close(),
            messages=self.messages,
            turns=tuple(turns),
            stop=EpisodeStop.INVALID if invalid else self.stop or EpisodeStop.INVALID,
            outcome=outcome,
            answer=self.answer,
            wall_s=wall_s,
            score_s=self.score_s,
        )
