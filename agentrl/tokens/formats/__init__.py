"""Tool-call formats, one small file each."""

import difflib
from collections.abc import Mapping

from agentrl.errors import ConfigError
from agentrl.tokens.formats.base import ToolFormat
from agentrl.tokens.formats.hermes import Hermes
from agentrl.tokens.tokenizer import Tokenizer

__all__ = ["FORMATS", "Hermes", "ToolFormat", "choose_format"]

FORMATS: Mapping[str, type[ToolFormat]] = {
    "hermes": Hermes,
}


def choose_format(tokenizer: Tokenizer, override: str | None = None) -> ToolFormat:
    """The format that the tokenizer's chat template writes, or the one named.

    A template that knows no tools gets Hermes, which is then explained in the system message.
    Raises ConfigError for an unknown name, and for a template that writes calls in a format that is
    not built in, or in one of several.
    """
    if override is not None:
        if override not in FORMATS:
            near = difflib.get_close_matches(override, FORMATS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {sorted(FORMATS)}"
            raise ConfigError(f"tool format {override!r} is unknown; {hint}")
        return FORMATS[override](tokenizer)
    source = tokenizer.template.source
    found = _candidates(source)
    if len(found) > 1:
        raise ConfigError(
            f"the chat template may write tool calls in the formats {', '.join(found)}; "
            "name the one that the model was trained with"
        )
    if not found and "tool_calls" in source:
        raise ConfigError(
            "the chat template writes tool calls in a format that is not built in; "
            f"name the format that the model was trained with, one of {sorted(FORMATS)}"
        )
    return FORMATS[found[0] if found else "hermes"](tokenizer)


def _candidates(source: str) -> list[str]:
    """Formats with a sign in the template, without those whose sign is part of another's."""
    signs = {
        name: set(sign)
        for name, made in FORMATS.items()
        for sign in made.signs
        if all(text in source for text in sign)
    }
    return [name for name in signs if not any(signs[name] < other for other in signs.values())]
