"""Chat templates: compiled in an environment that renders as transformers does."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_dictsort
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentrl.errors import ConfigError
from agentrl.tokens.template_scan import LOOKS, plain_uses

_MARKER = re.compile(r'<\|"\|>|</?[^<>\s{}"\']{1,48}>|\[/?[A-Za-z_]{3,24}\]')
_SECRET = re.compile("[\U000f0000-\U000fffff]+")
"""What `ContentGuard` puts into texts: characters of the plane that `private_text` draws from."""
_REFUSALS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError)
_LIMITS = (ArithmeticError, RecursionError, MemoryError)


class ChatTemplate:
    """A compiled chat template; rendering is thread-safe.

    What it says of the date (`strftime_now`) is the day on which it was compiled.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` are what templates know as `bos_token`, `eos_token`, ...

        Raises ConfigError if the source is no valid template.
        """
        self.source = source
        self._special_tokens = dict(special_tokens)
        # The date of a prompt is that of its template: a run that passes midnight has one.
        environment = _make_jinja_environment(datetime.now())  # noqa: DTZ005 - local, as in training
        try:
            self._tree = environment.parse(source)
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, SyntaxError, ValueError, *_LIMITS) as error:
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
        # Templates index, add and compare what they are given, so any of these means a refusal.
        except (*_REFUSALS, *_LIMITS) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ConfigError(
                f"the chat template refuses a conversation of {roles} ({error}); "
                "use a template that accepts these roles in this order"
            ) from error

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """What looks like a marker in the text that the template writes, such as `<tool_call>`."""
        return tuple(sorted({m for text in self.literals for m in _MARKER.findall(text)}))

    @cached_property
    def literals(self) -> frozenset[str]:
        """Every constant text in the template."""
        written = (node.value for node in self._tree.find_all(nodes.Const))
        data = (node.data for node in self._tree.find_all(nodes.TemplateData))
        return frozenset([*(text for text in written if isinstance(text, str)), *data])

    @cached_property
    def tested(self) -> frozenset[str]:
        """Texts that the template looks for in a message, such as `</think>`.

        White space and plain words are left out: they belong to ordinary text.
        """
        return frozenset(
            text
            for text in self._find_texts_template_looks_for()
            if re.search(r"[^\w\s]\w|\w[^\w\s]", text)
        )

    @cached_property
    def verbatim(self) -> bool:
        """Whether the template writes contents as they are, unless one of `tested` is in them."""
        searched = frozenset(self._find_texts_template_looks_for()) - self.tested
        return not any(text.strip() for text in searched) and plain_uses(self._tree)

    @cached_property
    def inserted(self) -> frozenset[str]:
        """Texts that the template puts between parts of a message, by `replace` or `join`."""
        texts: set[str] = set()
        for name, subject, arguments in self._list_filters_and_methods():
            if name in ("replace", "join"):
                texts.update(
                    text for argument in arguments for text in _find_constant_texts(argument)
                )
            if name == "join":
                texts.update(_find_constant_texts(subject))
        return frozenset(texts)

    def _find_texts_template_looks_for(self) -> Iterator[str]:
        for compare in self._tree.find_all(nodes.Compare):
            if any(operand.op in ("in", "notin") for operand in compare.ops):
                yield from _find_constant_texts(compare.expr)
        for name, _, arguments in self._list_filters_and_methods():
            if name in LOOKS and arguments:
                yield from _find_constant_texts(arguments[0])

    def _list_filters_and_methods(
        self,
    ) -> Iterator[tuple[str, nodes.Node | None, list[nodes.Expr]]]:
        """Filters and methods: their name, what they are applied to, and their arguments."""
        for node in self._tree.find_all(nodes.Filter):
            yield node.name, node.node, [*node.args, *(k.value for k in node.kwargs)]
        for call in self._tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Getattr):
                arguments = [*call.args, *(k.value for k in call.kwargs)]
                yield call.node.attr, call.node.node, arguments


def _find_constant_texts(node: nodes.Node | None) -> Iterator[str]:
    """The constant texts in an expression."""
    if node is None:
        return
    for const in [node] if isinstance(node, nodes.Const) else node.find_all(nodes.Const):
        if isinstance(const.value, str):
            yield const.value


class _GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _make_jinja_environment(today: datetime) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    # Jinja declares these tables by what it puts there itself.
    filters = cast("dict[str, Callable[..., object]]", environment.filters)
    filters |= {"tojson": _write_json_for_template, "dictsort": _sort_dict_without_cuts}
    names = cast("dict[str, Callable[..., object]]", environment.globals)
    names |= {"raise_exception": _raise_template_error, "strftime_now": today.strftime}
    return environment


def _sort_dict_without_cuts(
    value: Mapping[str, object], *how: object, **named: object
) -> list[object]:
    """Jinja's own, with keys in the order of what they mean: a cut in one does not move it."""
    pairs = {_SECRET.sub("", str(key)): (key, item) for key, item in value.items()}
    order = do_dictsort({key: item for key, (_, item) in pairs.items()}, *how, **named)  # type: ignore[arg-type]
    return [pairs[key] for key, _ in order]


def _write_json_for_template(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the models saw it in training: no HTML escapes, UTF-8 kept."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_template_error(message: str) -> None:
    raise jinja2.TemplateError(message)
