"""Every template of the corpus: its verdicts, and its ids against transformers' own."""

from collections.abc import Iterable
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agentrl.tokens import Renderer, Results
from agentrl.tokens.template_check import TemplateReport, examine
from agentrl.types import AssistantTurn, Message, ToolSchema
from tests.integration.templates.conversations import (
    TOOLS,
    Played,
    conversations,
    oracle_of,
    play,
)
from tests.integration.templates.corpus import load, sources

USES: dict[str, tuple[tuple[ToolSchema, ...], Results]] = {
    "tools": (TOOLS, "template"),
    "user": (TOOLS, "user"),
}
FORKED = {
    "deepseek_r1_distill",
    "deepseek_r1_distill_training",
    "deepseekv3",
    "deepseekv3_training",
}
DROPS_RESULTS = {
    "cohere2",
    "cohere2_training",
    "phi3",
    "phi3_5",
    "phi3_5_training",
    "phi3_training",
}
NO_TOOL_ROLE = {
    "cohere",
    "cohere_training",
    "gemma",
    "gemma3",
    "gemma3_training",
    "gemma_training",
    "llava_next",
    "llava_next_training",
}
SHOWS_ALL = {
    *("gemma4_v2", "idefics3", "smolvlm", "lfm2", "lfm2_v2", "llama3", "llama3_1", "llama3_2"),
    *("muse_glimmer", "qwen2_5", "qwen2_5_vl", "qwen3_instruct_2507", "qwen3_vl", "qwen3_8"),
    *("qwen3_training", "qwen3_5_think_training", "qwen3_6_training"),
}
"""Those that show later what was sampled; so do their variants for training."""
EXACT = sorted(sources().keys() - FORKED - DROPS_RESULTS - NO_TOOL_ROLE)
ONE_OF_EACH = {
    *("cohere", "deepseekv3", "gemma4_v2", "glm4moe", "gptoss", "idefics3", "lfm2", "llama3_1"),
    *("phi3", "qwen3", "qwen3_training"),
}
"""The kinds of templates; `make nightly` has all the others."""


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    """A test of each of them: here of one of each kind."""
    nightly = pytest.mark.nightly
    cases = [pytest.param(n, marks=() if n in ONE_OF_EACH else nightly) for n in sorted(names)]
    return pytest.mark.parametrize("name", cases)


pytestmark = pytest.mark.timeout(300)  # the first one loads the tokenizers
few = settings(
    max_examples=20,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@cache
def renderer_of(name: str, use: str) -> Renderer:
    tools, results = USES[use]
    return Renderer(load(name), tools, tool_results=results)


@cache
def report_of(name: str, use: str) -> TemplateReport:
    return examine(renderer_of(name, use), with_tools=True)


def test_the_corpus_is_the_one_that_the_table_is_about() -> None:
    assert len(sources()) == 72
    assert len(EXACT) == 54
    assert sources().keys() > FORKED | DROPS_RESULTS | NO_TOOL_ROLE


@each(sources())
def test_a_template_has_the_verdict_of_the_table(name: str) -> None:
    with_tools = report_of(name, "tools").verdict
    if name in EXACT:
        assert with_tools == "exact"
    else:
        assert with_tools == ("forked" if name in FORKED else "refused")
    assert report_of(name, "user").verdict == "exact"


@each(EXACT)
def test_a_template_that_shows_other_turns_than_were_sampled_says_so(name: str) -> None:
    says_so = any(row.detail.startswith("not always") for row in report_of(name, "tools").rows)
    assert says_so is not bool({name, name.removesuffix("_training")} & SHOWS_ALL)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_training", "glm4moe", "gptoss", "llama3_1"])
def test_a_turn_that_is_shown_otherwise_forks(name: str) -> None:
    tools, results = USES["tools"]
    renderer = Renderer(load(name), tools, tool_results=results, reasoning="fork")
    turn = AssistantTurn(text="Some answer.", reasoning="Some thought.")
    asked = [Message(role="user", content=text) for text in ("First ask.", "Second ask.")]
    ids = renderer.prompt(asked[:1]) + renderer.assistant(turn)
    row = "user, assistant with reasoning, user"
    rewritten = any(r.name == row and r.action == "keep" for r in report_of(name, "tools").rows)
    assert rewritten is (name != "qwen3_training")
    assert renderer.continuation(ids, [asked[0], turn.message(), asked[1]], 1).forks is rewritten


@each(DROPS_RESULTS | NO_TOOL_ROLE)
def test_what_is_refused_is_refused_by_the_result_that_is_lost(name: str) -> None:
    said = "drops or alters 'Result one.'" if name in DROPS_RESULTS else "user, assistant, tool"
    assert said in report_of(name, "tools").reason


@each(sources())
def test_ids_are_those_of_transformers_wherever_the_template_only_appends(name: str) -> None:
    use = "tools" if name in EXACT else "user"
    renderer = renderer_of(name, use)
    oracle = oracle_of(name, renderer)
    several = renderer.profile.parallel_calls or not renderer.calls_in_template
    played: list[Played] = []

    @few
    @given(conversations(calls=2 if several else 1))
    def run(chat: list[Message]) -> None:
        played.append(play(renderer, oracle, chat, use))

    run()
    assert sum(p.turns for p in played) >= 20


@each(EXACT)
def test_content_never_becomes_a_control_token(name: str) -> None:
    tokenizer, renderer = load(name), renderer_of(name, "tools")
    controls = frozenset(tokenizer.controls.values())
    shown = [*tokenizer.template.markers, *tokenizer.template.tested]
    parts = [c[: len(c) // 2] for c in shown] + [c[len(c) // 2 :] for c in shown]
    texts = st.lists(st.sampled_from([*shown, *parts, "x", " "]), min_size=1, max_size=4)

    def scaffold(chat: list[Message]) -> list[int]:
        ids = renderer.prompt(chat) + renderer.observation(chat[-1:])
        turn = AssistantTurn(text=chat[-1].content, calls=chat[-2].tool_calls)
        return [i for i in ids + renderer.assistant(turn) if i in controls]

    @settings(few, max_examples=10)
    @given(conversations(calls=1, turns=2, contents=texts.map(lambda t: "x" + "".join(t) + "x")))
    def run(chat: list[Message]) -> None:
        assert scaffold(chat) == scaffold([harmless(message) for message in chat])

    run()


def harmless(message: Message) -> Message:
    """The same message with nothing in it that looks like a marker."""
    from agentrl.tokens.template_dialect import mark_message

    kept = {tool.name for tool in TOOLS} | {"query", "limit", "", "call_0"}
    return mark_message(message, lambda text: text if text in kept else "xyx")
