"""What an episode has so far, and the record that it becomes.

    begin(prompt) -> turns -> begin(new prompt) -> turns -> finish
                              └ closes the segment before it, with its own digest

Whoever rewrites history goes through `begin`: a context policy with other messages, or a template
that renders the same messages anew.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentrl.envs import ToolEnv, Transition
from agentrl.tokens import TokenRecord
from agentrl.types import (
    AssistantTurn,
    Completion,
    Episode,
    EpisodeKey,
    EpisodeStop,
    Invalid,
    Message,
    Outcome,
    Score,
    Segment,
    Task,
    TurnRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJob:
    """One task to be played by a whole group."""

    key: EpisodeKey
    """Of the first try of the first member."""
    env: str
    make_env: Callable[[], ToolEnv]
    task: Task
    split: str
    success_at: float | None = None
    """The least score that is a success, if the environment or its verifier says it."""
    place: int = 0
    """Of the environment among those of the run."""


class EpisodeRecord:
    """Kept outside the loop, so that a failure loses nothing."""

    def __init__(self, job: GroupJob, key: EpisodeKey, vocab_size: int) -> None:
        self.job, self.id, self.seed = job, key.id, key.seed(job.task.id)
        self.tokens = TokenRecord(vocab_size)
        """Of the open segment; turns are numbered over all segments."""
        self.last: AssistantTurn | None = None
        """The last turn that the environment got."""
        self.stop: EpisodeStop | None = None
        self.outcome: Outcome | None = None
        self.has_side_effects = False
        """A tool with side effects was called: another attempt would call it again."""
        self.score_s = 0.0
        self.messages: tuple[Message, ...] = ()
        self.answer: object = None
        self.key = key
        self._vocab_size = vocab_size
        self._closed: list[Segment] = []
        self._turns: list[TurnRecord] = []
        """One per completion, those that no environment answered (summaries) too."""
        self._shown: tuple[Message, ...] = ()
        self._covered = 0
        self._advancing_since: float | None = None
        """When the environment began to answer the last turn; None once its answer is booked."""

    @property
    def num_turns(self) -> int:
        """Completions so far."""
        return len(self._turns)

    @property
    def num_tokens(self) -> int:
        """Tokens of all segments, each with its prompt."""
        return sum(segment.num_tokens for segment in self._closed) + self.tokens.num_tokens

    def begin(self, ids: Sequence[int], messages: Sequence[Message], covered: int) -> None:
        """Close the open segment, if there is one, and begin the next with a prompt.

        Args:
            ids: the rendered prompt.
            messages: what it shows.
            covered: for how many of the episode's messages it stands; later ones follow it.
        """
        if self.tokens.num_tokens:
            self._closed.append(self.tokens.close())
            self.tokens = TokenRecord(self._vocab_size, first_turn=self.tokens.turn)
        self.tokens.append_prompt(ids)
        self._shown, self._covered = tuple(messages), covered

    def shown(self, conversation: Sequence[Message]) -> tuple[Message, ...]:
        """The messages of the open segment, where the episode has had `conversation`."""
        return (*self._shown, *conversation[self._covered :])

    def book_sampled(self, completion: Completion, seconds: float) -> None:
        """Begin a turn's record; it is there should the environment be cut off."""
        self._turns.append(
            TurnRecord(
                num_sampled=len(completion.ids_T),
                cached_tokens=completion.cached_tokens,
                generate_s=seconds,
            )
        )

    def hand_over(self, turn: AssistantTurn) -> None:
        """The environment gets this turn now."""
        self.last, self._advancing_since = turn, time.perf_counter()

    def book(self, transition: Transition) -> None:
        """Add to the last turn what the environment made of it, once."""
        if self._advancing_since is None:
            return
        self._turns[-1] = replace(
            self._turns[-1],
            reward=transition.reward,
            parts=transition.parts,
            state_key=transition.state_key,
            num_calls=transition.num_calls,
            call_errors=transition.call_errors,
            environment_s=time.perf_counter() - self._advancing_since,
        )
        self._advancing_since = None

    def finish(self, *, wall_s: float) -> Episode:
        """The finished record; the score is booked on the last turn."""
        outcome = self.outcome or Invalid(reason="the episode was not scored", blame="environment")
        turns = self._turns or [TurnRecord()]
        total = sum(turn.reward for turn in turns)
        if isinstance(outcome, Score) and not math.isfinite(total + outcome.value):
            outcome = Invalid(
                reason=f"the turns' rewards ({total:g}) and the score ({outcome.value:g}) have no "
                "finite sum",
                blame="environment",
            )
        stop = self.stop or EpisodeStop.INVALID
        if isinstance(outcome, Score):
            last = turns[-1]
            reward, parts = last.reward + outcome.value, {**last.parts, **outcome.parts}
            turns = [*turns[:-1], replace(last, reward=reward, parts=parts)]
        else:
            stop = EpisodeStop.INVALID
            if self.has_side_effects:
                outcome = replace(outcome, retryable=False)
        if self.tokens.num_tokens:
            self._closed.append(self.tokens.close())
        job, key = self.job, self.key
        return Episode(
            id=self.id,
            env=job.env,
            task=job.task,
            split=job.split,
            group=key.group,
            member=key.member,
            attempt=key.attempt,
            seed=self.seed,
            segments=tuple(self._closed),
            messages=self.messages,
            turns=tuple(turns),
            stop=stop,
            outcome=outcome,
            answer=self.answer,
            wall_s=wall_s,
            score_s=self.score_s,
        )
