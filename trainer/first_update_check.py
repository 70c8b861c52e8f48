"""The gate before the first update, and the alarm that stays on after it.

Tokens that were sampled under the weights that the trainer has are on policy, so policy and
behavior must be the same distribution there: those of the version that is trained, if nothing of
that version was trained on before. Others are not judged, so neither is a batch that has no others.

Suffix: S sampled tokens of the batch.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import cast

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.trainer.config import RatioBandConfig
from agentrl.trainer.sampled_tokens import SampledTokens
from agentrl.trainer.updates import GapAlarm, RatioStats, Suspect, ratio_stats
from agentrl.types import Json

_FAR = 10.0
"""A gap is far outside what the run has had if it is so many times the median."""
_KEPT = 100
"""Steps within the band that the median is taken over."""
_NAMED = 3
"""Episodes that an alarm names."""


class GapGate:
    """Judges the on-policy tokens of each update of a run.

    The first update must lie in the band, or the run stops. Later a step outside of it whose gap
    is also far outside what the run has had is an alarm: its batch is not to be trained on.
    """

    def __init__(self, band: RatioBandConfig, max_alarms: int) -> None:
        self._band = band
        self._max_alarms = max_alarms
        self._num_alarms = 0
        self._gaps = deque[tuple[float, float]](maxlen=_KEPT)
        """Mean and max of the steps within the band."""
        self._trained = -1
        """The newest version whose tokens were trained on: the weights changed after it."""
        self.is_open = False
        """The first update of this process has passed."""

    def judge(
        self, tokens: SampledTokens, newest: int, episode_ids: Sequence[str]
    ) -> GapAlarm | None:
        """An alarm, if this batch is one; raises RunError before the first update.

        `newest` is the version that is trained, of which a batch or mini-batch may have nothing.
        """
        judged_S = (tokens.versions_S == newest) & (newest > self._trained)
        ratios = ratio_stats(tokens.policy_S[judged_S], tokens.behavior_S[judged_S])
        if not judged_S.any() or np.isnan(ratios.mean):
            return None
        over_mean = ratios.deviation_mean > self._band.mean
        over_max = ratios.deviation_max > self._band.max
        if (over_mean or over_max) and not self.is_open:
            _raise_gap_error(ratios, self._band, worst_tokens(tokens, judged_S), episode_ids)
        self.is_open = True
        usual_mean, usual_max = map(median, zip(*(self._gaps or [(np.inf, np.inf)]), strict=True))
        far_mean = over_mean and ratios.gap_mean > _FAR * usual_mean
        far_max = over_max and ratios.gap_max > _FAR * usual_max
        if far_mean or far_max:
            usual = f"{usual_mean:.2g} (mean) and {usual_max:.2g} (max)"
            return self._make_gap_alarm(ratios, usual, worst_tokens(tokens, judged_S))
        if not (over_mean or over_max):  # else a slow drift would carry its own measure along
            self._gaps.append((ratios.gap_mean, ratios.gap_max))
        return None

    def trained(self, newest: int) -> None:
        """The weights changed by a step, so what was sampled under its newest version is old."""
        self._trained = max(self._trained, newest)

    def state(self) -> Mapping[str, Json]:
        """What a checkpoint holds of it."""
        return {
            "alarms": self._num_alarms,
            "gaps": [list(pair) for pair in self._gaps],
            "trained": self._trained,
        }

    def restore(self, state: Mapping[str, Json]) -> None:
        """Go on with what the run has had."""
        self._num_alarms, self._trained = cast(int, state["alarms"]), cast(int, state["trained"])
        pairs = cast("list[tuple[float, float]]", state["gaps"])
        self._gaps.extend((mean, largest) for mean, largest in pairs)

    def _make_gap_alarm(
        self, ratios: RatioStats, usual: str, worst: tuple[Suspect, ...]
    ) -> GapAlarm:
        self._num_alarms += 1
        return GapAlarm(
            reason=(
                f"the gap between engine and trainer is {ratios.gap_mean:.2g} (mean) and "
                f"{ratios.gap_max:.2g} (max) nats, where this run had {usual}, and mean "
                f"|ratio - 1| is {ratios.deviation_mean:.2g} and the largest "
                f"{ratios.deviation_max:.2g}, outside trainer.ratio_band"
            ),
            worst=worst,
            number=self._num_alarms,
            final=self._num_alarms >= self._max_alarms,
        )


def worst_tokens(tokens: SampledTokens, judged_S: NDArray[np.bool_]) -> tuple[Suspect, ...]:
    """The judged token with the largest gap of each of the worst episodes."""
    found: dict[int, Suspect] = {}
    judged = np.flatnonzero(judged_S)
    gaps: NDArray[np.float64] = np.abs(tokens.policy_S - tokens.behavior_S)[judged]
    for s in judged[np.argsort(-gaps, kind="stable")].tolist():
        found.setdefault(
            int(tokens.episode_S[s]),
            Suspect(
                episode=int(tokens.episode_S[s]),
                segment=int(tokens.segment_S[s]),
                token=int(tokens.token_S[s]),
                policy=float(tokens.policy_S[s]),
                behavior=float(tokens.behavior_S[s]),
            ),
        )
        if len(found) == _NAMED:
            break
    return tuple(found.values())


def _raise_gap_error(
    ratios: RatioStats,
    band: RatioBandConfig,
    worst: Sequence[Suspect],
    episode_ids: Sequence[str],
) -> None:
    named = "; ".join(f"{episode_ids[each.episode]}, {each}" for each in worst)
    raise RunError(
        f"before the first update the importance ratios of {ratios.num_tokens} tokens have mean "
        f"{ratios.mean:.4g}, mean |ratio - 1| {ratios.deviation_mean:.4g} (at most {band.mean:g} "
        f"expected) and largest |ratio - 1| {ratios.deviation_max:.4g} (at most {band.max:g}); the "
        f"logprob gap is {ratios.gap_mean:.4g} (mean) and {ratios.gap_max:.4g} (max) nats; engine "
        "and trainer do not compute the same distribution, so check weights, temperature and dtype "
        "of the engine, or widen trainer.ratio_band if its precision explains this; worst are "
        f"{named}"
    )
