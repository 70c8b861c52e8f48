"""The values that travel between the layers: frozen, without behaviour that needs the outside."""

from agentrl.types.batch import Batch
from agentrl.types.episode import (
    Agent,
    Episode,
    EpisodeSession,
    EpisodeStop,
    EpisodeView,
    Invalid,
    Outcome,
    Score,
    Task,
    TurnRecord,
)
from agentrl.types.identity import EpisodeKey, Purpose
from agentrl.types.messages import (
    CUT_OFF,
    AssistantTurn,
    CallError,
    CallErrorReason,
    Json,
    Message,
    Role,
    ToolCall,
    ToolSchema,
)
from agentrl.types.tokens import Completion, Sampling, Segment, Source, StopReason

__all__ = [
    "CUT_OFF",
    "Agent",
    "AssistantTurn",
    "Batch",
    "CallError",
    "CallErrorReason",
    "Completion",
    "Episode",
    "EpisodeKey",
    "EpisodeSession",
    "EpisodeStop",
    "EpisodeView",
    "Invalid",
    "Json",
    "Message",
    "Outcome",
    "Purpose",
    "Role",
    "Sampling",
    "Score",
    "Segment",
    "Source",
    "StopReason",
    "Task",
    "ToolCall",
    "ToolSchema",
    "TurnRecord",
]
