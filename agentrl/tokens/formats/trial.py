"""A format of a user's, tried before a run begins: what it writes, it has to read again."""

from typing import Final

from agentrl.boundary import user_code
from agentrl.errors import ConfigError
from agentrl.tokens.formats.base import ToolFormat
from agentrl.types import AssistantTurn, CallError, ToolCall, ToolSchema

_TEXT: Final = {"type": "string"}
TOOL: Final = ToolSchema(
    name="look",
    description="Look somewhere.",
    parameters={
        "type": "object",
        "properties": {"place": _TEXT, "times": {"type": "integer"}},
        "required": ["place"],
    },
)
CALLS: Final = (
    ToolCall(name="look", arguments={"place": "the café", "times": 3}),
    ToolCall(name="look", arguments={"place": 'the "old" one\nnext door, 1 < 2'}),
)


def check_format(kind: object, label: str) -> type[ToolFormat]:
    """The class of a format, which reads what it writes and any part of it.

    Raises:
        ConfigError: it is no subclass of ToolFormat, or reads its own calls otherwise.
    """
    if not (isinstance(kind, type) and issubclass(kind, ToolFormat)):
        raise ConfigError(f"{label} is no subclass of ToolFormat; name a class that is")
    for name in ("name", "starts"):
        if not getattr(kind, name, None):
            raise ConfigError(f"{label} has no `{name}`; declare it, as ToolFormat says")
    with user_code(label, fault=ConfigError):
        made = kind()
        text = made.render_calls(CALLS)
    for written, calls in ((text, CALLS), (made.render_calls(CALLS[:1]), CALLS[:1])):
        found = _parse_trial_text(made, written, label).calls
        if [_pair_name_with_arguments(call) for call in found] != [
            _pair_name_with_arguments(call) for call in calls
        ]:
            errors = [call.message for call in found if isinstance(call, CallError)]
            said = f"{len(found) - len(errors)} calls" + (f" ({errors[0]})" if errors else "")
            raise ConfigError(
                f"{label} wrote {len(calls)} calls as {written!r}, but reads {said}; "
                "read_call has to read what render_calls writes"
            )
    for end in range(len(text)):
        _parse_trial_text(made, text[:end], label)
    return kind


def _parse_trial_text(made: ToolFormat, text: str, label: str) -> AssistantTurn:
    with user_code(f"{label}: reading {text[-40:]!r}", fault=ConfigError):
        return made.parse_text(text, [TOOL])


def _pair_name_with_arguments(call: ToolCall | CallError) -> object:
    return (call.name, call.arguments) if isinstance(call, ToolCall) else None
