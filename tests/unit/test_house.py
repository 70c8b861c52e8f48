"""The size and the shape of the code, counted from its syntax trees.

Printed without a bar (`pytest -s`): functions per 1,000 code lines, and private names of one word
that are used more than twice.
"""

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("envs", "tools", "sandboxes", "trainer")
SATELLITES = ("envs/swe/build/", "agentrl/engine/serve/", "agentrl/testing/sandbox_")
"""Beside the core: the builder of tasks, the server of the local engine, the sandboxes' tests."""

MOST_CORE_LINES = 42_060
"""24,000 is the aim. What stands above it came with grading that cheats cannot tell apart, models
that are refused in a sentence, and parts that are brought from outside; 600 are the estimators and
losses of the field, 700 the scheduler and its driver, 340 its virtual clock and the draws that it
shares with real runs, 320 what it begins beyond need, leaves behind and has judged by a policy, 250
the log of turns, 120 what `run status` says, 300 the corrections of what an engine sampled, 350 the
choice of what of a step is trained on, 400 several updates from one batch and the weights of their
tokens, 430 the training of reward models, 450 penalties, bonuses, scales of rewards and costs, 100
a teacher, 200 one that a server has, 70 a critic that learns first, 160 what of an algorithm is
refused before anything loads, 30 keys beside options that overrule them and weights of nothing, 150
a watch over processes that hang, 230 a concurrency that follows the engine's cache, 50 damaged
files and impossible numbers that `run status`, `run simulate` and a schedule refuse, 500 servers of
vLLM, 600 groups of workers and their actors in a Ray cluster, 880 the players there, 340 the
launching of runs on clusters, 430 pools of devices and their bill, 430 the choice among placements,
240 rows that go to their ranks alone, 240 roles that have ranks of their own."""
KEPT_HELPERS = {
    **dict.fromkeys(("_load_scorer_once", "_hash_file_once_per_change"), "cached by its arguments"),
    **dict.fromkeys(("_compile_flex_once", "_has_flash_attention"), "cached for the process"),
    **dict.fromkeys(
        ("_reap_containers_once_per_host", "_start_background_loop_once"), "cached: done once"
    ),
    **dict.fromkeys(("_start_backend", "_save_workspace_to_file"), "a backend overrides it"),
    **dict.fromkeys(
        ("_send_and_receive_frame", "_await_tool"),
        "a coroutine that its caller may leave to itself",
    ),
}
"""Private functions of one caller and at most three lines that stand all the same, and why."""

MOST_SATELLITE_LINES = 4_180
"""4,000, and 50 for prompts that the server of the local engine scores."""
MOST_MODULE_LINES = 500
MOST_FUNCTION_LINES = 60
NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources() -> Mapping[str, str]:
    """The text of each module by its path."""
    files = [file for top in ("agentrl", *LINKED) for file in (ROOT / top).rglob("*.py")]
    return {
        str(file.relative_to(ROOT)): file.read_text(encoding="utf-8")
        for file in sorted(files)
        if not any(parent.is_symlink() for parent in file.parents)
    }


@cache
def trees() -> Mapping[str, ast.Module]:
    return {path: ast.parse(text) for path, text in sources().items()}


def module_name(path: str) -> str:
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(["agentrl", *parts] if parts[0] in LINKED else parts)


def is_core(path: str) -> bool:
    return not path.startswith(SATELLITES)


def code_lines(path: str) -> int:
    """Lines without blanks, comments and docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(trees()[path]):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last):
                docstrings |= set(range(first, (last or first) + 1))
            case _:
                pass
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(sources()[path]).readline):
        if token.type not in NOT_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def functions(path: str) -> Iterator[Function]:
    for node in ast.walk(trees()[path]):
        if isinstance(node, Function):
            yield node


def slight_helpers(path: str) -> Iterator[str]:
    """Private functions of at most three lines that one place of their module calls."""
    nodes = list(ast.walk(trees()[path]))
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    uses = Counter([*names, *(node.attr for node in nodes if isinstance(node, ast.Attribute))])
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in functions(path):
        body = node.body[1:] if ast.get_docstring(node) and node.body[1:] else node.body
        lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
        is_private = node.name.startswith("_") and not node.name.endswith("__")
        is_called = {node.name, f"self.{node.name}"} & called
        if is_private and is_called and lines <= 3 and uses[node.name] == 1:
            yield f"{path}:{node.lineno} {node.name}"


def imported(node: ast.AST, known: Mapping[str, str]) -> Iterator[str]:
    """The modules that are imported as soon as this one is, whoever asks for types aside."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.ImportFrom) and child.module:
            names = [f"{child.module}.{alias.name}" for alias in child.names]
            yield from (name if name in known else child.module for name in names)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        yield from imported(child, known)


def test_the_core_is_no_larger_than_agreed() -> None:
    core = sum(code_lines(path) for path in sources() if is_core(path))
    satellites = sum(code_lines(path) for path in sources() if not is_core(path))
    count = sum(1 for path in sources() if is_core(path) for _ in functions(path))
    names = Counter(
        node.name
        for path in sources()
        for node in functions(path)
        if node.name.startswith("_") and node.name[1:].isalpha()
    )
    frequent = [name for name, number in names.most_common() if number > 2]
    print(f"\ncore {core}, satellites {satellites}, {1000 * count / core:.0f} functions a 1,000")
    print(f"{len(frequent)} private names of one word used more than twice: {frequent[:12]}")
    assert core <= MOST_CORE_LINES
    assert satellites <= MOST_SATELLITE_LINES


def test_what_one_caller_can_say_itself_is_no_function() -> None:
    slight = [helper for path in sources() if is_core(path) for helper in slight_helpers(path)]
    unexpected = [helper for helper in slight if helper.split()[1] not in KEPT_HELPERS]
    assert unexpected == [], "write what they do where they are called"
    assert {helper.split()[1] for helper in slight} == KEPT_HELPERS.keys()


def test_no_module_and_no_function_is_too_long() -> None:
    long = [path for path, text in sources().items() if text.count("\n") > MOST_MODULE_LINES]
    assert long == []
    for path in sources():
        for node in functions(path):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            lines -= (ast.get_docstring(node) or "").count("\n")
            assert lines <= MOST_FUNCTION_LINES, f"{path}: {node.name} has {lines} lines"


def test_no_two_public_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_modules_import_each_other() -> None:
    known = {module_name(path): path for path in sources()}
    needs = {
        name: {m for m in imported(trees()[path], known) if m in known and m != name}
        for name, path in known.items()
    }
    left = dict(needs)
    while free := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}, f"in a circle, or importing one: {sorted(left)}"
