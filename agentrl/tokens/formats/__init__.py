"""Tool-call formats, one small file each."""

from collections.abc import Mapping
from typing import cast

from agentrl.config.seams import Seam
from agentrl.errors import ConfigError
from agentrl.tokens.formats.atem import Atem
from agentrl.tokens.formats.base import ToolFormat
from agentrl.tokens.formats.command_r7b import CommandR7B
from agentrl.tokens.formats.deepseek import DeepSeek
from agentrl.tokens.formats.gemma import Gemma
from agentrl.tokens.formats.glm import Glm
from agentrl.tokens.formats.harmony import Harmony
from agentrl.tokens.formats.hermes import Hermes
from agentrl.tokens.formats.kimi_k2 import KimiK2
from agentrl.tokens.formats.llama3_json import Llama3Json
from agentrl.tokens.formats.minimax_m2 import MiniMaxM2
from agentrl.tokens.formats.mistral import Mistral
from agentrl.tokens.formats.phi4_mini import Phi4Mini
from agentrl.tokens.formats.pythonic import Pythonic
from agentrl.tokens.formats.qwen3_coder import Qwen3Coder
from agentrl.tokens.formats.trial import check_format
from agentrl.tokens.formats.xml import Xml
from agentrl.tokens.tokenizer import Tokenizer

__all__ = ["FORMATS", "Hermes", "ToolFormat", "choose_format", "resolve_format"]

FORMATS: Mapping[str, type[ToolFormat]] = {
    "hermes": Hermes,
    "qwen3_coder": Qwen3Coder,
    "llama3_json": Llama3Json,
    "pythonic": Pythonic,
    "mistral": Mistral,
    "deepseek": DeepSeek,
    "glm": Glm,
    "kimi_k2": KimiK2,
    "harmony": Harmony,
    "xml": Xml,
    "minimax_m2": MiniMaxM2,
    "gemma": Gemma,
    "phi4_mini": Phi4Mini,
    "command_r7b": CommandR7B,
    "atem": Atem,
}


def resolve_format(ref: object) -> type[ToolFormat]:
    """The format that `ref` is or names; one that is not built in is tried.

    Raises:
        ConfigError: there is none, or it does not read what it writes.
    """
    seam = Seam("tool format", FORMATS, "agentrl.tool_formats")
    found = seam.find(ref)
    if found not in FORMATS.values():
        check_format(found, seam.label(ref))
    return cast("type[ToolFormat]", found)


def choose_format(
    tokenizer: Tokenizer, override: str | type[ToolFormat] | None = None
) -> ToolFormat:
    """The format that the tokenizer's chat template writes, or the one named.

    A template that knows no tools gets Hermes, which is then explained in the system message.
    Raises ConfigError for one that is not there, and for a template that writes calls in a format
    that is not built in, or in one of several.
    """
    if override is not None:
        return resolve_format(override)(tokenizer)
    source = tokenizer.for_tools.template.source
    # Formats with a sign in the template, without those whose sign is part of another's.
    signs = {
        name: set(sign)
        for name, made in FORMATS.items()
        for sign in made.signs
        if all(text in source for text in sign)
    }
    found = [name for name in signs if not any(signs[name] < other for other in signs.values())]
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
