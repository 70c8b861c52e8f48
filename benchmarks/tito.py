"""Token-in/token-out over a corpus of real chat templates, and what rendering by suffix costs.

    python benchmarks/tito.py [--conversations 1000] [--templates qwen2_5,glm4moe] [--skip-corpus]

For each template random conversations are played through the real record by a scripted engine that
splits words in its own, non-canonical way. What the record holds is compared with the script's own
log, and turn by turn with transformers' rendering of the whole conversation; the loop that decodes
and tokenizes again is measured on the same input. Then the cost per episode against rendering all
of it every turn, and, where the package `renderers` is installed, against its hand-written bridge.
Exits with 1 for any mismatch and below a bar.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.tokens import Renderer, Tokenizer, TokenRecord, seal
from agentrl.tokens.template_check import examine
from agentrl.types import AssistantTurn, Message, StopReason, ToolCall
from tests.integration.templates.conversations import (
    TOOLS,
    Oracle,
    conversations,
    oracle_of,
    rewriting,
    turns_of,
)
from tests.integration.templates.corpus import family, load, sources

BARS = {"qwen2_5": 0.5, "qwen3": 0.75}
"""Most of the bridge's time that an observation may take."""


@dataclass(slots=True)
class Tally:
    """What came of a template's conversations."""

    episodes: int = 0
    turns: int = 0
    equal: int = 0
    drifted: int = 0
    """Episodes whose ids change when they are decoded and tokenized again."""
    mismatches: list[str] = field(default_factory=list[str])
    rewritten: Counter[str] = field(default_factory=Counter[str])


def main() -> int:
    """Run all parts; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--templates", default="")
    parser.add_argument("--skip-corpus", action="store_true")
    arguments = parser.parse_args()
    names = arguments.templates.split(",") if arguments.templates else sorted(sources())
    failed = not arguments.skip_corpus and run_corpus(names, arguments.conversations)
    run_costs()
    return int(run_bridge() or failed)


def run_corpus(names: list[str], num: int) -> bool:
    """Play every template; true if anything disagreed."""
    verdicts: Counter[str] = Counter()
    total = Tally()
    for name in names:
        renderer = Renderer(load(name), TOOLS)
        report = examine(renderer, with_tools=True)
        verdicts[report.verdict] += 1
        use = "tools"
        if report.verdict != "exact":
            print(f"{name}: {report.verdict} with tools: {report.reason}")
            renderer, use = Renderer(load(name), TOOLS, tool_results="user"), "user"
            if examine(renderer, with_tools=True).verdict != "exact":
                print(f"{name}: not usable with results as user text")
                continue
        started = time.perf_counter()
        tally = play_many(name, renderer, use, num)
        print(
            f"{name} ({family(name)}, {use}): {tally.episodes} episodes, {tally.turns} turns, "
            f"{tally.equal} with the template's ids, {dict(tally.rewritten)}, "
            f"{len(tally.mismatches)} mismatches, {tally.drifted} episodes drift when decoded and "
            f"tokenized again, {time.perf_counter() - started:.0f} s"
        )
        for mismatch in tally.mismatches[:3]:
            print(f"  {mismatch}")
        total.episodes += tally.episodes
        total.drifted += tally.drifted
        total.mismatches += tally.mismatches
    print(f"with tools: {dict(verdicts)} of {len(names)}")
    print(
        f"{total.episodes} episodes: {len(total.mismatches)} mismatches by the record, "
        f"{total.drifted} episodes drift in the loop that tokenizes again"
    )
    return bool(total.mismatches)


def play_many(name: str, renderer: Renderer, use: str, num: int) -> Tally:
    """Play random conversations on one template."""
    tokenizer, oracle, tally = load(name), oracle_of(name, renderer), Tally()
    several = renderer.profile.parallel_calls or not renderer.calls_in_template

    @settings(
        max_examples=num,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(conversations(calls=2 if several else 1))
    def run(chat: list[Message]) -> None:
        play_one(tokenizer, renderer, oracle, chat, use, tally)

    run()
    return tally


def play_one(
    tokenizer: Tokenizer,
    renderer: Renderer,
    oracle: Oracle,
    chat: list[Message],
    use: str,
    tally: Tally,
) -> None:
    """One episode through the record, with a log of its own beside it."""
    rng = random.Random(tally.episodes)
    places = turns_of(chat)
    record, log, trained = TokenRecord(tokenizer.vocab_size), list[int](), list[bool]()

    def note(ids: list[int], *, sampled: bool) -> None:
        log.extend(ids)
        trained.extend([sampled] * len(ids))

    before = oracle.ids(chat[: places[0][0]], use)
    prompt = renderer.prompt(chat[: places[0][0]])
    record.append_prompt(prompt)
    note(prompt, sampled=False)
    if prompt != before:
        tally.mismatches.append("the prompt is not the template's")
    for at, end in places:
        message = chat[at]
        turn = AssistantTurn(
            text=message.content, reasoning=message.reasoning, calls=message.tool_calls
        )
        canonical = renderer.assistant(turn)
        sampled = split_words(canonical, tokenizer, rng)
        num = len(sampled)
        record.append_sampled(seal(sampled, [-0.5] * num, [1] * num, StopReason.STOP))
        note(sampled, sampled=True)
        added = renderer.observation(chat[at + 1 : end], after=sampled[-1])
        record.append_environment(added)
        note(added, sampled=False)
        after = oracle.ids(chat[:end], use)
        tally.turns += 1
        if before + canonical + added == after:
            tally.equal += 1
        elif reason := rewriting(renderer, message, before, canonical, added, after):
            tally.rewritten[reason] += 1
        else:
            tally.mismatches.append(f"turn {at} is not the template's")
        before = after
    segment = record.close()
    if segment.ids_T.tolist() != log or segment.mask_T.tolist() != trained:
        tally.mismatches.append("the record is not the script's log")
    again = tokenizer.encode(tokenizer.decode(log), specials=True)
    tally.drifted += again != log
    tally.episodes += 1


def split_words(ids: list[int], tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    """The same text with some tokens in two, as a model may sample it."""
    controls = frozenset(tokenizer.controls.values())
    split: list[int] = []
    for number in ids:
        text = "" if number in controls else tokenizer.decode([number])
        if len(text) > 1 and text.isascii() and rng.random() < 0.2:
            cut = rng.randrange(1, len(text))
            halves = [tokenizer.encode(part, specials=False) for part in (text[:cut], text[cut:])]
            if tokenizer.decode(halves[0] + halves[1]) == text:
                split += halves[0] + halves[1]
                continue
        split.append(number)
    return split


def run_costs() -> None:
    """Tokens tokenized and CPU time of whole episodes, by suffix and all over again."""
    renderer = Renderer(load("qwen2_5"), TOOLS)
    for num_turns in (10, 50, 200):
        chat = [Message(role="user", content="What is the weather?")]
        call = AssistantTurn(text="Let me see.").message()
        results = [weather("user", num_turns, i) for i in range(num_turns)]
        renderer.observation([weather("user", 0, 0)])
        by_suffix = cpu_s(partial(observe, renderer, results))
        tokens = sum(len(renderer.observation([result])) for result in results)
        all_over, all_tokens = 0.0, 0
        for result in results:
            chat += [call, result]
            all_over += cpu_s(partial(renderer.prompt, chat))
            all_tokens += len(renderer.prompt(chat))
        print(
            f"{num_turns} turns: {1e3 * by_suffix / num_turns:.3f} ms and {tokens} tokens by "
            f"suffix; all over again {all_over / by_suffix:.0f} times the CPU time and "
            f"{all_tokens / tokens:.0f} times the tokens"
        )


def weather(role: Literal["user", "tool"], place: int, number: int) -> Message:
    """An observation that differs from the others, so that no part of it is cached."""
    text = f"Place {place}.{number}: it is 21 degrees and sunny, wind 3 m/s, from the west."
    if role == "user":
        return Message(role=role, content=text)
    return Message(role=role, content=text, name="lookup", tool_call_id="call_0")


def observe(renderer: Renderer, messages: Sequence[Message]) -> None:
    """One observation after another."""
    for message in messages:
        renderer.observation([message])


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of some work."""
    started = time.process_time()
    work()
    return time.process_time() - started


def timed(work: Callable[[Any], Any], items: Sequence[Any]) -> tuple[float, list[Any]]:
    """CPU seconds and results of work on each item."""
    results = list[Any]()
    return cpu_s(lambda: results.extend(map(work, items))), results


def run_bridge() -> bool:
    """Against `renderers`' bridge; true if it is not beaten by enough."""
    if find_spec("renderers") is None:
        print("renderers is not installed: no comparison with its bridge")
        return False
    from tests.integration.templates.conversations import fast_of

    renderers: Any = import_module("renderers")
    missed = False
    for name, bar in BARS.items():
        renderer = Renderer(load(name), TOOLS)
        theirs = renderers.Qwen3Renderer(fast_of("qwen3"))
        prompt = renderer.prompt([Message(role="user", content="What is the weather?")])
        call = ToolCall(name="lookup", arguments={"query": "weather"}, id="call_0")
        sampled = renderer.assistant(AssistantTurn(text="Let me see.", calls=(call,)))
        tools = [tool.to_json()["function"] for tool in TOOLS]
        bridge = partial(theirs.bridge_to_next_turn, prompt, sampled, tools=tools)
        times, same = np.zeros((9, 2)), True
        for repeat in range(len(times)):
            new = [[weather("tool", repeat, i)] for i in range(100)]
            given_new = [[{"role": "tool", "content": m.content, "name": m.name}] for (m,) in new]
            times[repeat, 0], ours = timed(renderer.observation, new)
            times[repeat, 1], others = timed(bridge, given_new)
            begin = len(prompt) + len(sampled)
            same &= [list(other.token_ids)[begin:] for other in others] == ours
        times /= 100
        mine, other = np.median(times, axis=0)
        missed |= bool(mine > bar * other)
        print(
            f"{name}: {1e3 * mine:.3f} ms, bridge {1e3 * other:.3f} ms, ratio {mine / other:.2f} "
            f"(bar {bar}), {'the same ids' if same else 'other ids'}"
        )
    return missed


if __name__ == "__main__":
    sys.exit(main())
