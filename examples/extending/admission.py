from collections.abc import Sequence

from agentrl.rollout import Admission, EndedGroup, Judgement


class Hard(Admission):
    """Trains on no group that nearly always succeeds, and gives slow members a minute more."""

    def judge(self, group: EndedGroup) -> Judgement:
        rewards = [episode.reward for episode in group.episodes]
        if rewards and sum(rewards) / len(rewards) > 0.9:
            return Judgement("easy", replace=True)
        return super().judge(group)

    def patience(self, ended_s: Sequence[float], members: int) -> float:
        return 60.0 + super().patience(ended_s, members)
