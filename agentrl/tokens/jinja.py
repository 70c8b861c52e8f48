"""Chat templates: compiled in an environment that renders as transformers does.

What a template does with contents is read from its syntax. A *use* of them is plain if the same
text comes out around every content that holds none of the texts that the template looks for:
writing it, trimming it, asking for its type, or splitting it at such a text. Comparing, slicing or
counting is not.
"""

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

Macros = Mapping[str, nodes.Macro]

LOOKS = frozenset({"startswith", "endswith", "split", "rsplit", "find", "count", "replace"})
"""Methods and filters whose first argument is looked for in a text."""
_GIVES_TEXT = frozenset({"split", "rsplit", "replace", "strip", "lstrip", "rstrip"})
_TRIMS = frozenset({"strip", "lstrip", "rstrip", "trim"})
_TYPES = frozenset({"string", "defined", "undefined", "none", "mapping", "sequence", "iterable"})
_PLAIN = (
    nodes.Output,
    nodes.If,
    nodes.CondExpr,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Add,
    nodes.Concat,
    nodes.Assign,
    nodes.Operand,
    nodes.Keyword,
    nodes.Macro,
)


def plain_uses(tree: nodes.Template) -> bool:
    """Whether all uses of contents in the template are plain."""
    if any(True for _ in tree.find_all((nodes.CallBlock, nodes.FilterBlock))):
        return False
    macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
    names = _collect_content_names(tree, macros)
    return all(
        _does_node_use_content_plainly(node, names, macros) for node in tree.find_all(nodes.Node)
    )


def _collect_content_names(tree: nodes.Template, macros: Macros) -> frozenset[str]:
    """Names of variables, attributes and macros that may hold a content."""
    names = frozenset({"content"})
    while True:
        more = names.union(
            *(_find_content_names(node, macros, names) for node in tree.find_all(nodes.Node))
        )
        if more == names:
            return names
        names = more


def _find_content_names(node: nodes.Node, macros: Macros, names: frozenset[str]) -> Iterator[str]:
    """Names that this node gives to a content."""
    assigned = isinstance(node, nodes.Assign) and _holds_content(node.node, names)
    if assigned or (isinstance(node, nodes.AssignBlock) and _holds_any_content(node, names)):
        yield from (target.attr for target in node.find_all(nodes.NSRef))
        yield from (target.name for target in node.find_all(nodes.Name) if target.ctx == "store")
    elif isinstance(node, nodes.Macro) and _holds_any_content(node, names):
        yield node.name
    elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
        macro = macros.get(node.node.name)
        if macro and any(_holds_content(given, names) for given in node.iter_child_nodes(["node"])):
            yield from (argument.name for argument in macro.args)


def _holds_any_content(node: nodes.Node, names: frozenset[str]) -> bool:
    return any(_holds_content(found, names) for found in node.find_all(nodes.Expr))


def _holds_content(node: nodes.Node, names: frozenset[str]) -> bool:
    """Whether the value of an expression may be made of a content."""
    match node:
        case nodes.Name():
            return node.name in names
        case nodes.Test() | nodes.Compare():
            return False
        case nodes.Const():  # the key in message['content']
            return node.value in names if isinstance(node.value, str) else False
        case nodes.Getattr() if node.attr in names:
            return True
        case nodes.Call(node=nodes.Getattr(attr=name)) if name in LOOKS - _GIVES_TEXT:
            return False
        case nodes.CondExpr():
            branches = [node.expr1, node.expr2]
            return any(_holds_content(branch, names) for branch in branches if branch is not None)
        case _:
            return any(_holds_content(child, names) for child in node.iter_child_nodes())


def _does_node_use_content_plainly(node: nodes.Node, names: frozenset[str], macros: Macros) -> bool:
    """Whether the node does nothing but plain things to the contents right under it."""
    parts = [
        child
        for child in node.iter_child_nodes()
        if isinstance(child, nodes.Expr | nodes.Helper) and _holds_content(child, names)
    ]
    if not parts or isinstance(node, _PLAIN):
        return True
    match node:
        case nodes.Test():
            return node.name in _TYPES
        case nodes.Filter():
            return node.name in {"string", "tojson"} or _is_search_or_trim(node.name, node.args)
        case nodes.Compare(expr=nodes.Const(value=str(text))):
            return bool(text.strip()) and all(o.op in ("in", "notin") for o in node.ops)
        case nodes.Call(node=nodes.Getattr(attr=name)):
            return name == "get" or _is_search_or_trim(name, node.args)
        case nodes.Call(node=nodes.Name(name=name)):
            return name in macros
        case nodes.Getattr():
            return node.attr in LOOKS | _TRIMS
        case nodes.Getitem(arg=nodes.Const() | nodes.Neg()):
            of = node.node.node if isinstance(node.node, nodes.Call) else None
            splits = isinstance(of, nodes.Getattr) and of.attr in ("split", "rsplit")
            return splits or not _holds_content(node.node, names)
        case _:
            return False


def _is_search_or_trim(name: str, arguments: list[nodes.Expr]) -> bool:
    """Whether a method or filter only looks for given texts or trims white space."""
    texts = [a.value if isinstance(a, nodes.Const) else None for a in arguments]
    if name in _TRIMS:
        return all(isinstance(text, str) and not text.strip() for text in texts)
    return name in LOOKS and bool(texts) and isinstance(texts[0], str) and bool(texts[0].strip())


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
