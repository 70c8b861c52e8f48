"""What a template does with contents, from its syntax.

A *use* is plain if the same text comes out around every content that holds none of the texts that
the template looks for: writing it, trimming it, asking for its type, or splitting it at such a
text. Comparing, slicing or counting is not.
"""

from collections.abc import Iterator, Mapping

from jinja2 import nodes

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
