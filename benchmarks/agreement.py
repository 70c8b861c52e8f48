"""Where our renderer and parsers agree with two others, and who is right where they do not.

    PYTHONPATH=FOLDER python benchmarks/agreement.py [--templates qwen3,glm4moe] [--skip-sglang]

The others are the hand-written renderers of the package `renderers` (FOLDER is made by `make
benchmarks/.renderers`), on the chat templates that both cover, and SGLang's detectors of tool
calls, on the unit tests' table of cases for formats; each is left out, and said to be, where it is
not installed. Every disagreement is printed with its entry in `reasons.py`. Exits with 1 for one
without an entry, and for an entry that nothing needs any more.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast

from agentrl.engine.sglang.install import SGLANG, SHIMS
from agentrl.tokens import Renderer, Tokenizer
from agentrl.tokens.formats import FORMATS, choose_format
from agentrl.tokens.template_dialect import Dialect, to_wire
from agentrl.types import AssistantTurn, Message, StopReason, ToolCall
from benchmarks.reasons import KNOWN, Known
from tests.contract.formats import test_contract as table
from tests.contract.formats import test_wire as wire
from tests.integration.templates.conversations import TOOLS, Oracle, fast_of
from tests.integration.templates.corpus import definition_of, family, load, sources

PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {}),
    "qwen3_5_think": ("Qwen35", {"enable_thinking": True}),
    "qwen3_5_nothink": ("Qwen35", {"enable_thinking": False}),
    "qwen3_6": ("Qwen36", {"enable_thinking": True}),
    "qwen3_8": ("Qwen38", {"enable_thinking": True}),
    "qwen3_vl": ("Qwen3VL", {}),
    "glm4moe": ("GLM45", {}),
    "llama3_1": ("Llama3", {}),
    "deepseekv3": ("DeepSeekR1", {}),
    "gemma4_v5": ("Gemma4", {}),
    "nemotron_3_nano": ("Nemotron3", {}),
    "nemotron_3_super": ("Nemotron3", {}),
    "nemotron_3_ultra": ("Nemotron3Ultra", {}),
    "nemotron_3_5_lightning": ("Nemotron35", {}),
}
"""The renderer of each template, with its settings. That of gpt-oss downloads its vocabulary."""
DETECTORS = {
    "hermes": "hermes",
    "qwen3_coder": "qwen3_coder",
    "llama3_json": "llama3",
    "pythonic": "pythonic",
    "mistral": "mistral",
    "deepseek": "deepseekv31",
    "glm": "glm45",
    "kimi_k2": "kimi_k2",
    "harmony": "gpt-oss",
    "minimax_m2": "minimax-m2",
    "gemma": "gemma4",
    "atem": "muse",
}
"""SGLang's detector of each format; it has none for `xml`, `phi4_mini` and `command_r7b`."""
GEMMA = """
    <bos> <eos> <|channel> <channel|> <|image> <image|> <|image|> <|think|> <|tool> <tool|>
    <|tool_call> <tool_call|> <|tool_response> <tool_response|> <|turn> <turn|>
""".split()  # noqa: SIM905 - as they stand in the family's files
SYSTEM = Message(role="system", content="Be brief.")
USER = Message(role="user", content="What is the weather in Zürich?")
THANKS = Message(role="user", content="Thanks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question to both."""

    other: str
    """"renderers" or "sglang"."""
    subject: str
    """The chat template or the format."""
    case: str
    agree: bool
    shown: str
    """What each of them answered."""

    @property
    def reason(self) -> Known | None:
        """The entry about it."""
        return next((k for k in KNOWN if k.is_about(self.other, self.subject, self.case)), None)


def main() -> int:
    """Ask both; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--templates", default=",".join(PAIRS))
    parser.add_argument("--skip-sglang", action="store_true")
    arguments = parser.parse_args()
    rows: list[Row] = []
    if find_spec("renderers") is None:
        print(
            "renderers is not installed; put the folder of make benchmarks/.renderers on the path"
        )
    else:
        for name in arguments.templates.split(","):
            rows += compare_renderer(name)
    if not arguments.skip_sglang:
        rows += compare_detectors()
    differing = [row for row in rows if not row.agree]
    show(rows)
    for reason, some in groupby(sorted(differing, key=by_reason), key=lambda row: row.reason):
        tell(reason, list(some))
    unexplained = [row for row in differing if row.reason is None]
    complete = {row.other for row in rows} if arguments.templates == ",".join(PAIRS) else set[str]()
    used = {row.reason for row in differing}
    unused = [known for known in KNOWN if known.other in complete and known not in used]
    for known in unused:
        print(f"nothing needs this reason any more: {known}")
    print(f"{len(rows)} questions, {len(differing)} disagreements, {len(unexplained)} unexplained")
    return int(bool(unexplained or unused))


def by_reason(row: Row) -> int:
    """Unexplained rows last."""
    return KNOWN.index(row.reason) if row.reason else len(KNOWN)


def show(rows: Sequence[Row]) -> None:
    """The table: what each subject was asked, how often both agree, and who is right else."""
    print(
        "| compared with | subject | asked | agree | ours is right | theirs | a matter of choice |"
    )
    print("|---|---|---|---|---|---|---|")
    for (other, subject), some in groupby(rows, key=lambda row: (row.other, row.subject)):
        asked = list(some)
        right = Counter(row.reason.right for row in asked if not row.agree and row.reason)
        agree = sum(row.agree for row in asked)
        counts = " | ".join(str(right[who]) for who in ("ours", "theirs", "choice"))
        print(f"| {other} | {subject} | {len(asked)} | {agree} | {counts} |")


def tell(reason: Known | None, rows: Sequence[Row]) -> None:
    """The disagreements that one reason explains."""
    print(f"\n{reason.right}: {reason.why}" if reason else "\nunexplained:")
    for row in rows if reason is None else rows[:1]:
        print(f"  {row.other}, {row.subject}, {row.case}: {row.shown}")
    if reason and len(rows) > 1:
        print(f"  and {len(rows) - 1} more")


def chats() -> dict[str, list[Message]]:
    """Conversations by name, each with one assistant's message first after the prompt."""

    def called(*arguments: dict[str, Any], **said: str) -> Message:
        calls = [
            ToolCall(name=TOOLS[i].name, arguments=some, id=f"call_{i}")
            for i, some in enumerate(arguments)
        ]
        return Message(role="assistant", tool_calls=tuple(calls), **said)

    def result(text: str, number: int = 0) -> Message:
        name = TOOLS[number].name
        return Message(role="tool", content=text, name=name, tool_call_id=f"call_{number}")

    said = Message(role="assistant", content="It is sunny.")
    values = {"query": 'é "q" \n 漢', "limit": 3, "x": True, "y": None, "z": [1, "a", {"k": 1.5}]}
    one = {"query": "a"}
    return {
        "text": [USER, said, THANKS],
        "system": [SYSTEM, USER, said, THANKS],
        "call": [USER, called(one), result("21")],
        "call with words": [USER, called(one, content="Let me see."), result("21")],
        "two calls": [USER, called(one, {"text": "b"}), result("one"), result("two", 1)],
        "call, then user": [USER, called(one), result("21"), said, THANKS],
        "reasoning": [USER, Message(role="assistant", reasoning="Hm.", content="Sun."), THANKS],
        "call with reasoning": [USER, called(one, reasoning="Hm."), result("21")],
        "values": [USER, called(values), result("21")],
        "spaces": [USER, said, Message(role="user", content="  both ends \n")],
        "spaces in a result": [USER, called(one), result("\n 21 \n")],
        "control token in a result": [USER, called(one), result("<|im_end|><|eot_id|><turn|>")],
        "control token in an argument": [USER, called({"query": "a</tool_call>b"}), result("21")],
    }


def compare_renderer(name: str) -> Iterator[Row]:
    """One template on every conversation: the whole prompt, the next turn, the parsed turn."""
    tokenizer, fast = tokenizers_of(name)
    tools = () if name == "deepseekv3" else TOOLS  # its template shows no tools
    form = choose_format(tokenizer)
    ours = Renderer(tokenizer, tools, tool_format=form)
    oracle = Oracle(fast, sources()[name], ours)
    kind, settings = PAIRS[name]
    renders = theirs_of(kind, fast, **settings)
    bridges = theirs_of(kind, fast, **settings, thinking_retention="all")
    shown = [tool.to_json() for tool in tools] or None

    def ids(what: str, mine: list[int], other: list[int] | None, more: str = "") -> Row:
        told = around(tokenizer, mine, other or []) + more if other else f"{mine} or {other}"
        return Row(other="renderers", subject=name, case=what, agree=mine == other, shown=told)

    for case, chat in chats().items():
        if case == "two calls" and not ours.profile.parallel_calls:
            continue
        told: Any = to_wire(chat, Dialect())
        full = ours.prompt(chat)
        given = renders.render_ids(told, tools=shown, add_generation_prompt=True)
        template = oracle.ids(chat, "tools" if tools else "text")
        more = f"; the template's ids are {which(template, full, given)}"
        yield ids(f"render: {case}", full, list(given), more)

        at = next(i for i, message in enumerate(chat) if message.role == "assistant")
        end = next((i for i, m in enumerate(chat) if i > at and m.role == "assistant"), len(chat))
        before, sampled = ours.prompt(chat[:at]), ours.assistant(turn_of(chat[at]))
        whole = before + sampled + ours.observation(chat[at + 1 : end], after=sampled[-1])
        found = bridges.bridge_to_next_turn(before, sampled, told[at + 1 : end], tools=shown)
        yield ids(f"bridge: {case}", whole, found and list(found.token_ids))

        mine = form.parse(sampled, StopReason.STOP, TOOLS, thinking=ours.opens_thinking)
        every = [tool.to_json() for tool in TOOLS]
        other = renders.parse_response(sampled, tools=every, prompt_ids=before)
        yield Row(
            other="renderers",
            subject=name,
            case=f"parse: {case}",
            agree=summary(mine) == summary_of_theirs(other),
            shown=f"ours {summary(mine)}, theirs {summary_of_theirs(other)}",
        )


def turn_of(message: Message) -> AssistantTurn:
    """The turn that a message in a conversation was."""
    return AssistantTurn(
        text=message.content, reasoning=message.reasoning, calls=message.tool_calls
    )


def which(template: list[int], ours: list[int], theirs: list[int]) -> str:
    """Whose ids are the template's own."""
    return "ours" if template == ours else "theirs" if template == theirs else "neither's"


def around(tokenizer: Tokenizer, ours: list[int], theirs: list[int]) -> str:
    """Where two sequences part."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    mine, other = (tokenizer.decode(ids[max(at - 3, 0) : at + 8]) for ids in (ours, theirs))
    return f"ours …{mine!r} of {len(ours)} ids, theirs …{other!r} of {len(theirs)}"


def theirs_of(kind: str, fast: PreTrainedTokenizerFast, **settings: Any) -> Any:
    """A renderer of the package."""
    package: Any = import_module("renderers")
    config = getattr(package, f"{kind}RendererConfig")(**settings)
    return getattr(package, f"{kind}Renderer")(fast, config)


@cache
def tokenizers_of(name: str) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    """A template's tokenizer for us and for them, with the tokens that they ask for."""
    if not name.startswith(("llama3", "gemma")):
        return load(name), fast_of(family(name))
    definition, special = definition_of(family(name))
    if name.startswith("llama3"):  # Llama 3.1 gave names to tokens that 3.0 had reserved
        names = {t["id"]: t["content"] for t in json.loads(definition)["added_tokens"]}
        for number, text in ((128_008, "<|eom_id|>"), (128_010, "<|python_tag|>")):
            definition = definition.replace(json.dumps(names[number]), json.dumps(text))
        special = special | {"eos_token": "<|eot_id|>"}
    else:
        raw = RawTokenizer.from_str(definition)
        special_tokens = [AddedToken(text, normalized=False) for text in GEMMA]
        raw.add_special_tokens(special_tokens)  # pyright: ignore[reportUnknownMemberType]
        definition, special = raw.to_str(), {"bos_token": "<bos>", "eos_token": "<eos>"}
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=RawTokenizer.from_str(definition),
        clean_up_tokenization_spaces=False,
        **special,
    )
    return Tokenizer(definition, sources()[name], special_tokens=special), fast


def plain(value: object) -> Any:
    """The value in JSON's own containers."""
    return json.loads(json.dumps(value, default=dict))


def calls_of(turn: AssistantTurn) -> list[Any]:
    """What may run, and None for each call that may not."""
    return [
        [call.name, plain(call.arguments)] if isinstance(call, ToolCall) else None
        for call in turn.calls
    ]


def summary(turn: AssistantTurn) -> str:
    """A turn for comparison: text, reasoning, calls."""
    return repr((turn.text, turn.reasoning, calls_of(turn)))


def summary_of_theirs(parsed: Any) -> str:
    """The same of what `renderers` found."""
    calls = [
        [call.name, plain(arguments_of(call.arguments))] if call.status.name == "OK" else None
        for call in parsed.tool_calls
    ]
    return repr((parsed.content.strip(), (parsed.reasoning_content or "").strip(), calls))


def arguments_of(value: Any) -> Any:
    """Arguments that may be text."""
    return json.loads(value) if isinstance(value, str) else value


def compare_detectors() -> Iterator[Row]:
    """Every format on the table, each text seen by both."""
    where = SGLANG.installed()
    if where is None:
        print("SGLang is not installed; agentrl engine install sglang --cpu makes it")
        return
    tools = {"wire": wire.TOOLS, "table": table.TOOLS}
    cases = [case for name in DETECTORS for case in cases_of(name)]
    asked = {
        "tools": {name: [tool.to_json() for tool in some] for name, some in tools.items()},
        "cases": [[DETECTORS[name], text, which] for name, _, text, which in cases],
    }
    env = os.environ | {"PYTHONPATH": str(SHIMS), "SGLANG_USE_CPU_ENGINE": "1"}
    answer = subprocess.run(
        [str(where.python), str(Path(__file__).with_name("detectors.py"))],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        check=True,
    )
    found = json.loads(answer.stdout.splitlines()[-1])
    for (name, case, text, which), theirs in zip(cases, found, strict=True):
        turn = FORMATS[name]().parse_text(text, tools[which])
        mine = [call for call in calls_of(turn) if call is not None]
        # They leave out what is no call, so only what may run is compared.
        same = json.dumps(mine, sort_keys=True) == json.dumps(theirs, sort_keys=True)
        shown = f"in {text!r} we found {calls_of(turn)}, they {theirs}"
        yield Row(other="sglang", subject=name, case=case, agree=same, shown=shown)


def cases_of(name: str) -> Iterator[tuple[str, str, str, str]]:
    """The format, the case's title, the text and whose tools, for each case of a format."""
    form, call = table.made(name), table.call

    def written(*calls: ToolCall) -> str:
        return table.written(name, *calls)

    number = 0
    for known, text, *_ in wire.WIRE:
        if known == name:
            number += 1
            yield name, f"as models write it {number}", text, "wire"
    marker = (*form.ends, *form.noise, *form.starts)[0]
    quoted = f"Do {written(call({'s': 'q'}))} so"
    for value in (*table.STRINGS, f"a {marker} b", quoted):
        title = {quoted: "a call quoted", f"a {marker} b": "a marker"}.get(value, repr(value))
        yield name, f"string {title}", written(call({"s": value}), call({"i": 1}, 1)), "table"
    for values in table.VALUES:
        yield name, f"values {json.dumps(values)}", written(call(values)), "table"
    for title, bad, reason in table.BAD:
        if reason != "too_large":
            text = written(call({"s": "first"}), bad, call({"s": "last"}, 2))
            yield name, f"bad call: {title}", text, "table"
    text = written(call({"s": "first"}), call({"s": "second and last"}))
    yield name, "cut off", text[: text.index("and last")], "table"
    twice = written(call({"s": "1", "qq": "2"}, tool="open")).replace("qq", "s")
    yield name, "an argument twice", twice, "table"
    draft = written(call({"s": "draft"})).replace("<|call|>", "").replace("<|eom|>", "")
    text = form.render_reasoning(f"Maybe {draft}") + written(call({"i": 1}))
    yield name, "a draft in reasoning", text, "table"


if __name__ == "__main__":
    sys.exit(main())
