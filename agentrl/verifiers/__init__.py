"""Verifiers: rules that turn an episode into a score, or say that there is none.

    verifier ── resolve_verifier ──> checked at start ── score_with ──> Score | Invalid

A score is only ever a number within the verifier's range. Whatever goes wrong with the verifier
makes the episode Invalid; nothing that fails counts as 0.
"""

from agentrl.verifiers.compare import ExactMatch, ExactNumber
from agentrl.verifiers.resolve import resolve_verifier
from agentrl.verifiers.reward_model import RewardModel
from agentrl.verifiers.rubric import FormatOk, LengthPenalty, Rubric
from agentrl.verifiers.scoring import (
    AnswerVerifier,
    CompositeVerifier,
    EpisodeVerifier,
    PlainVerifier,
    Verdict,
    Verifier,
    check_success_at,
    score_range,
    score_with,
    success_at,
)

__all__ = [
    "AnswerVerifier",
    "CompositeVerifier",
    "EpisodeVerifier",
    "ExactMatch",
    "ExactNumber",
    "FormatOk",
    "LengthPenalty",
    "PlainVerifier",
    "RewardModel",
    "Rubric",
    "Verdict",
    "Verifier",
    "check_success_at",
    "resolve_verifier",
    "score_range",
    "score_with",
    "success_at",
]
