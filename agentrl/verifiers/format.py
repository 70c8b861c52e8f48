"""Were all tool calls well formed?"""

from dataclasses import dataclass
from typing import ClassVar

from agentrl.types import CallErrorReason, EpisodeView


@dataclass(frozen=True, slots=True)
class FormatOk:
    """True if every call that the policy tried to make could be read and fitted its tool's schema.

    An error that a tool itself raised is no fault of the format.
    """

    in_process: ClassVar[bool] = True

    def score_episode(self, view: EpisodeView) -> bool:
        """Look at the call errors of the episode.

        Raises:
            ValueError: the view was made without them.
        """
        if view.call_errors is None:
            raise ValueError("the view has no call_errors; whoever made it has to fill them in")
        reasons = {str(reason) for reason in CallErrorReason}
        return reasons.isdisjoint(view.call_errors)
