import asyncio
import re
import subprocess
import sys
import warnings
from collections import Counter

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import agentrl
from agentrl.envs import BUILT_IN, EnvServices, TokenEnv, ToolEnv, resolve_env
from agentrl.envs.calculator import Calculator
from agentrl.envs.context import REQUEST
from agentrl.envs.long_haul import EARLY, END, NEXT, NOTHING, LongHaul
from agentrl.envs.number_guess import NumberGuess
from agentrl.envs.tasks import SPLITS, split_of
from agentrl.errors import ConfigError
from agentrl.tokens import Tokenizer
from agentrl.types import (
    AssistantTurn,
    EpisodeStop,
    EpisodeView,
    Message,
    Outcome,
    Score,
    Task,
    ToolCall,
)

NAMES = sorted(BUILT_IN)
WITHOUT_SANDBOX = [name for name in NAMES if not name.endswith("_sandbox")]
IDS = ["agentrl/Calculator-v0", "agentrl/LongHaul-v0", "agentrl/NumberGuess-v0"]
OF_SANDBOX = ["agentrl/CodeSandbox-v0", "agentrl/SweSandbox-v0"]


def drawn(env_class: type[ToolEnv], split: str, number: int) -> list[Task]:
    return [env_class.task_at(i, split=split, seed=0) for i in range(number)]


async def play_expert(env: ToolEnv, task: Task) -> tuple[Outcome, int]:
    expert = type(env).expert()
    assert expert is not None
    await env.areset(seed=0, options={"task": task})
    turns, stop = 0, None
    while stop is None:
        stop = (await env.advance(expert.act(env.view()))).stop
        turns += 1
    return await env.ascore(), turns


def pair(task: Task) -> tuple[int, int]:
    a, _, b = str(task.data["expression"]).split(" ")
    return int(a), int(b)


def test_calculator_has_enough_tasks_in_splits_without_a_common_pair() -> None:
    every = {
        (a, b): split_of("calculator", *sorted((a, b))) for a in range(100) for b in range(100)
    }
    sizes = Counter(every.values())
    assert min(sizes["train"] // 4, sizes["heldout"]) * 3 > 5000  # three operators
    assert all(every[a, b] == every[b, a] for a, b in every)
    for split in SPLITS:
        tasks = drawn(Calculator, split, 400)
        assert {every[pair(task)] for task in tasks} == {split}
        assert len({task.prompt for task in tasks}) > 350


def test_number_guess_has_enough_tasks_in_splits_without_a_common_game() -> None:
    games = [(low, low + i) for low in range(100, 901) for i in range(32)]
    every = {game: split_of("number_guess", *game) for game in games}
    sizes = Counter(every.values())
    assert sizes.total() > 10_000
    assert sizes["heldout"] > 4000
    for split in SPLITS:
        tasks = drawn(NumberGuess, split, 400)
        assert {every[task.data["low"], task.answer] for task in tasks} == {split}
        assert len({task.id for task in tasks}) > 350


def test_long_haul_has_enough_tasks_in_splits_without_a_common_key() -> None:
    answers = {split: {str(t.answer) for t in drawn(LongHaul, split, 3000)} for split in SPLITS}
    keys = {split: len(answers[split]) for split in SPLITS}
    assert not answers["train"] & answers["heldout"]
    assert keys["heldout"] > 150
    assert keys["train"] > 700
    # whatever the other sentences: each key in four places of three pages
    assert (keys["train"] + keys["heldout"]) * 12 > 10_000
    for split in SPLITS:
        assert len({task.id for task in drawn(LongHaul, split, 400)}) == 400
    for task in drawn(LongHaul, "train", 100):
        [page] = [i for i, p in enumerate(task.data["pages"]) if f"The key is {task.answer}." in p]
        assert page < 3


async def test_long_haul_goes_round_and_takes_an_answer_after_the_last_page() -> None:
    env = LongHaul({"pages": 3})
    await env.areset(seed=0)

    async def say(text: str) -> str:
        return (await env.advance(AssistantTurn(text=text))).messages[0].content

    assert await say(str(env.task.answer)) == EARLY
    pages = [await say("read") for _ in range(2)]
    assert await say(str(env.task.answer)) == EARLY
    pages += [await say(" read\n") for _ in range(2)]
    assert pages == [*env.task.data["pages"], env.task.data["pages"][0]]
    assert [page.endswith(END) for page in pages] == [False, False, True, False]
    assert (await env.advance(AssistantTurn(text="red"))).stop is EpisodeStop.ANSWERED
    assert await env.ascore() == Score(value=0.0)


def test_the_expert_of_long_haul_knows_what_it_is_shown_and_forgets_in_some_summaries() -> None:
    expert = LongHaul.expert()
    assert expert is not None
    fact = "The key is 1 book low."

    def say(task: Task, *shown: str) -> str:
        messages = tuple(Message(role="user", content=text) for text in shown)
        return expert.act(EpisodeView(task=task, messages=messages)).text

    tasks = drawn(LongHaul, "train", 200)
    counts = Counter(say(task, f"Go.\nSummary: {fact}", f"Page.\n{REQUEST}") for task in tasks)
    assert counts.keys() == {NOTHING, fact}
    assert 20 < counts[NOTHING] < 65
    ended = {say(task, f"Go.\nSummary: {fact}", f"Page. {END}\n{REQUEST}") for task in tasks}
    assert ended == {f"{fact} {END}"}
    assert say(tasks[0], "Go.", f"Page. {END}\n{REQUEST}") == END
    assert say(tasks[0], "Go.", f"Page.\n{REQUEST}") == NOTHING
    assert say(tasks[0], f"Go.\nSummary: {fact}", f"Page. {END}") == "1 book low"
    assert say(tasks[0], f"Go.\nSummary: {END}", f"Page. {fact}") == "1 book low"
    assert say(tasks[0], f"Go.\nSummary: {fact}", "Page.") == NEXT
    assert say(tasks[0], "Go.", f"Page. {END}") == NEXT


@pytest.mark.parametrize("name", WITHOUT_SANDBOX)
@pytest.mark.parametrize("split", ["train", "heldout"])
async def test_the_expert_always_wins(name: str, split: str) -> None:
    env = resolve_env(name)()
    for task in drawn(type(env), split, 50):
        outcome, turns = await play_expert(env, task)
        assert outcome == Score(value=1.0)
        assert turns <= env.max_turns
    await env.aclose()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "swe_sandbox"])
def test_unknown_splits_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no split test, expected train or heldout"):
        resolve_env(name).task_at(0, split="test", seed=0)


def test_calculator_parameters_shape_the_tasks() -> None:
    config = Calculator.Config(digits=3, operators="*")
    prompts = [
        str(Calculator.task_at(i, split="train", seed=0, config=config).prompt) for i in range(50)
    ]
    assert all("*" in prompt for prompt in prompts)
    numbers = [word for prompt in prompts for word in re.findall(r"\d+", prompt)]
    assert {len(number) for number in numbers} == {3}
    with pytest.raises(ConfigError, match=r"Calculator\.digits: got 0"):
        Calculator({"digits": 0})


async def test_a_power_tower_ends_at_its_timeout_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentrl.envs.calculator._TIMEOUT_S", 1.0)
    services = EnvServices()
    env, other = Calculator(services=services), Calculator(services=services)
    await env.areset(seed=0)
    await other.areset(seed=0)

    def calculate(expression: str) -> AssistantTurn:
        return AssistantTurn(
            calls=(ToolCall(name="calculator", arguments={"expression": expression}),)
        )

    slow = asyncio.create_task(env.advance(calculate("9**9**9")))
    await asyncio.sleep(0)
    quick = await other.advance(calculate("47 + 85"))
    assert quick.messages[0].content == "132"
    assert not slow.done()
    assert (await slow).messages[0].content == "Error: timed out after 1 s"
    large = await env.advance(calculate("2**1000 % 1000"))
    assert large.messages[0].content == "376"
    services.close()


async def test_number_guess_answers_each_kind_of_guess() -> None:
    env = NumberGuess()
    task = Task(prompt="?", answer=140, data={"low": 123, "high": 154})
    await env.areset(seed=0, options={"task": task})

    async def guess(text: str) -> str:
        return (await env.advance(AssistantTurn(text=text))).messages[0].content

    assert await guess("130") == "Too low. It is between 131 and 154."
    assert await guess("150") == "Too high. It is between 131 and 149."
    assert await guess("125") == "Too low. It is between 131 and 149."
    assert await guess("999") == "Reply with one number between 131 and 149."
    assert await guess("it is 140") == "Reply with one number between 131 and 149."
    assert await guess("139.5") == "Too low. It is between 140 and 149."
    assert await guess("141.5") == "Too high. It is between 140 and 141."
    last = await env.advance(AssistantTurn(text=" 140\n"))
    assert last.stop is EpisodeStop.ANSWERED
    assert await env.ascore() == Score(value=1.0)


async def test_number_guess_without_the_number_scores_zero() -> None:
    env = NumberGuess()
    await env.areset(seed=0)
    transitions = [await env.advance(AssistantTurn(text="no")) for _ in range(8)]
    assert transitions[-1].stop is EpisodeStop.MAX_TURNS
    assert await env.ascore() == Score(value=0.0)


@pytest.mark.parametrize("id_", IDS)
def test_gymnasium_accepts_it(id_: str, tokenizer: Tokenizer) -> None:
    assert agentrl.__doc__
    env = gymnasium.make(id_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
        assert isinstance(env.unwrapped, ToolEnv)
        inner = type(env.unwrapped)()
        inner.max_turns = 64
        tokens = TokenEnv(inner, tokenizer)
        check_env(tokens, skip_render_check=True)
    tokens.close()
    env.close()


@pytest.mark.parametrize("id_", IDS)
def test_sync_vector_environments_work(id_: str) -> None:
    vector = gymnasium.make_vec(id_, num_envs=3, vectorization_mode="sync")
    _, infos = vector.reset(seed=1)
    assert len(set(infos["task_id"])) == 3
    _, rewards, terminated, _, _ = vector.step(("1", "2", "3"))
    assert rewards.tolist() == [0.0, 0.0, 0.0]
    assert len(terminated) == 3
    vector.close()


def test_importing_agentrl_registers_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, agentrl, gymnasium; "
        "print([m for m in ('torch', 'ray', 'pydantic', 'agentrl.envs') if m in sys.modules]); "
        "print([i for i in gymnasium.registry if i.startswith('agentrl/')])"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == ["[]", str(sorted([*IDS, *OF_SANDBOX]))]
