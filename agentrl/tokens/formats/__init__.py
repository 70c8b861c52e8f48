"""Tool-call formats, one small file each."""

import difflib
from collections.abc import Callable

from agentrl.errors import ConfigError
from agentrl.tokens.formats.hermes import CALL, Hermes
from agentrl.tokens.formats.protocol import ToolFormat
from agentrl.tokens.tokenizer import Tokenizer

__all__ = ["FORMATS", "Hermes", "ToolFormat", "choose_format"]

FORMATS: dict[str, Callable[[Tokenizer], ToolFormat]] = {"hermes": Hermes}


def choose_format(tokenizer: Tokenizer, override: str | None = None) -> ToolFormat:
    """The format that the tokenizer's chat template writes, or the one named.

    A template that knows no tools gets Hermes, which is then explained in the system message.
    Raises ConfigError for an unknown name, and for a template with tools in another format.
    """
    if override is not None:
        if override not in FORMATS:
            near = difflib.get_close_matches(override, FORMATS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {sorted(FORMATS)}"
            raise ConfigError(f"tool format {override!r} is unknown; {hint}")
        return FORMATS[override](tokenizer)
    source = tokenizer.template.source
    if "tool_calls" in source and CALL not in source:
        raise ConfigError(
            "the chat template writes tool calls in a format that is not built in; "
            f"name the format that the model was trained with, one of {sorted(FORMATS)}"
        )
    return FORMATS["hermes"](tokenizer)
