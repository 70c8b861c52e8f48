"""What became of the groups that were played."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field

from agentrl.rollout.codec import LongPrompt, OddPrompt
from agentrl.rollout.episode_record import GroupJob
from agentrl.types import Episode


@dataclass(slots=True)
class PlayedGroup:
    """What became of one job."""

    job: GroupJob
    left_out: LongPrompt | OddPrompt | None = None
    """Why it was left out before it began, if it was."""
    episodes: list[Episode] = field(default_factory=list[Episode])
    """Those that could be scored, by member."""
    greedy: Episode | None = None
    """The greedy member, if it was asked for and could be scored."""
    invalid: list[Episode] = field(default_factory=list[Episode])
    """Every attempt without a score, also those that a later attempt made good."""
    dropped: list[Episode] = field(default_factory=list[Episode])
    """Those with a score that nobody trains on; each says why."""
    stopped: list[Episode] = field(default_factory=list[Episode])
    """What attempts had that were broken off; each says why."""


@dataclass(slots=True)
class Collected:
    """What a collection brought: the scored episodes, and every attempt that failed."""

    episodes: list[Episode] = field(default_factory=list[Episode])
    """One per (group, member) that could be scored and was not dropped, in that order."""
    invalid: list[Episode] = field(default_factory=list[Episode])
    """Every attempt without a score, also those that a later attempt made good."""
    too_long: list[LongPrompt] = field(default_factory=list[LongPrompt])
    """Groups that were left out before they began: no turn has room behind their prompt."""
    no_text: list[OddPrompt] = field(default_factory=list[OddPrompt])
    """Groups that were left out before they began: no tokenizer takes their prompt."""
    success_at: dict[str, float] = field(default_factory=dict[str, float])
    """The least score that is a success, by environment, where it is said."""
    greedy: list[Episode] = field(default_factory=list[Episode])
    """The greedy member of each group, where they were asked for; nobody trains on them."""
    dropped: list[Episode] = field(default_factory=list[Episode])
    """Those with a score that nobody trains on, in the same order; each says why."""
    stopped: list[Episode] = field(default_factory=list[Episode])
    """What attempts had that were broken off, in the same order; each says why."""
    num_groups: int = 0
    """All of them: played, or left out."""

    @property
    def scored(self) -> list[Episode]:
        """All that could be scored, those that are trained on first."""
        return self.episodes + self.dropped

    def __repr__(self) -> str:
        """Short: `asyncio.Runner.run` makes it of every result (in `signal.getsignal`)."""
        return f"Collected({len(self.episodes)} episodes, {len(self.invalid)} invalid)"

    def add(self, group: PlayedGroup) -> None:
        """Count a group in."""
        self.num_groups += 1
        if isinstance(group.left_out, LongPrompt):
            self.too_long.append(group.left_out)
        elif group.left_out is not None:
            self.no_text.append(group.left_out)
        elif group.job.success_at is not None:
            self.success_at[group.job.env] = group.job.success_at
        self.episodes += group.episodes
        self.greedy += [group.greedy] if group.greedy else []
        self.invalid += group.invalid
        self.dropped += group.dropped
        self.stopped += group.stopped

    def sort(self) -> None:
        """In the order of the groups' numbers, whichever ended first."""
        lists = (self.episodes, self.dropped, self.greedy, self.invalid, self.stopped)
        for episodes in lists:
            episodes.sort(key=lambda episode: (episode.group, episode.member, episode.attempt))


def gathered(groups: Iterable[PlayedGroup]) -> Collected:
    """All of these groups, in the order of their numbers."""
    collected = Collected()
    for group in groups:
        collected.add(group)
    collected.sort()
    return collected


async def gather_groups(
    groups: AsyncGenerator[PlayedGroup], on_group: Callable[[int], None] = lambda _: None
) -> Collected:
    """All groups of a collection, in the order of their numbers.

    `on_group` gets the number of groups that there are so far.
    """
    collected = Collected()
    async with aclosing(groups):
        async for group in groups:
            collected.add(group)
            on_group(collected.num_groups)
    collected.sort()
    return collected
