"""Chat templates: compiled in an environment that renders as transformers does."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentrl.errors import ConfigError


class ChatTemplate:
    """A compiled chat template; rendering is thread-safe."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` are what templates know as `bos_token`, `eos_token`, ...

        Raises ConfigError if the source is no valid template.
        """
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(
                f"the chat template cannot be compiled ({error}); "
                "give a folder with a valid chat_template.jinja"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] = (),
        *,
        add_generation_prompt: bool,
    ) -> str:
        """The conversation as text. Raises ConfigError if the template refuses it."""
        try:
            return self._template.render(
                messages=messages,
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ConfigError(
                f"the chat template refuses a conversation of {roles} ({error}); "
                "use a template that accepts these roles in this order"
            ) from error


class _GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    # Jinja declares these tables by what it puts there itself.
    filters = cast("dict[str, Callable[..., object]]", environment.filters)
    filters["tojson"] = _tojson
    names = cast("dict[str, Callable[..., object]]", environment.globals)
    names |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the models saw it in training: no HTML escapes, UTF-8 kept."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - templates mean local time
