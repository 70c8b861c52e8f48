from collections.abc import Sequence

from agentrl.rollout import Admission, EndedGroup, Verdict


class Hard(Admission):
    """Trains on no group that nearly always succeeds, and waits longer for those of long games."""

    def judge(self, group: EndedGroup) -> Verdict:
        rewards = [episode.reward for episode in group.episodes]
        if rewards and sum(rewards) / len(rewards) > 0.9:
            return Verdict("easy", replace=True)
        return super().judge(group)

    def patience(self, ended_s: Sequence[float], members: int) -> float:
        return 60.0 + super().patience(ended_s, members)
