"""The errors of agentrl; each says whose fault it is.

    AgentrlError
    ├── ConfigError           the user's input is wrong: the run stops before weights load (exit 2)
    ├── RunError              the run cannot go on (exit 1)
    │   ├── BreakerTripped    too many episodes were invalid
    │   └── RecordMismatch    tokens changed between the engine's answer and the loss
    ├── ToolError             the model's fault: shown to the model, counted, the episode goes on
    └── EpisodeError          the world's fault: the episode is Invalid, retried, then left out
        ├── EnvironmentFault  the environment's own code raised
        ├── EngineError       the engine failed, answered nonsense or answered too late
        ├── SandboxError      the sandbox failed
        └── VerifierError     the verifier raised, returned no score or ran out of time

A wrong answer, a non-zero exit code or a timeout inside a tool is a result, not an error.
"""

from typing import ClassVar, Literal

Blame = Literal["policy", "environment", "engine", "sandbox", "verifier"]


class AgentrlError(Exception):
    """Base of every error that agentrl raises on purpose."""


class ConfigError(AgentrlError, ValueError):
    """The user's input is wrong; the message says what was got, what was expected, what to do."""


class RunError(AgentrlError):
    """The run cannot go on."""


class BreakerTripped(RunError):
    """Too many episodes were invalid; the message holds the table of reasons."""


class RecordMismatch(RunError, ValueError):
    """A token record differs from what the engine returned; names episode and token."""


class ToolError(AgentrlError):
    """A tool was used wrongly; the message is shown to the model."""

    recorded_as: str = "tool_error"
    """What the record calls it."""


class EpisodeError(AgentrlError):
    """Something outside the policy failed: the episode is Invalid."""

    blame: ClassVar[Blame] = "environment"
    retryable: ClassVar[bool] = True
    """Whether the episode may be tried again."""


class EnvironmentFault(EpisodeError):
    """The environment's own code raised."""


class EngineError(EpisodeError):
    """The engine failed, answered nonsense or answered too late."""

    blame = "engine"


class SandboxError(EpisodeError):
    """The sandbox failed."""

    blame = "sandbox"


class VerifierError(EpisodeError):
    """The verifier raised, returned no score or ran out of time."""

    blame = "verifier"
