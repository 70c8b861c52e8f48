"""`agentrl env play`: play an episode by hand."""

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import cast

from pydantic import Field

from agentrl.boundary import one_line
from agentrl.cli.command import Arguments, Verb
from agentrl.cli.env_check import SHORT, EnvFlags, load_env
from agentrl.config import Config
from agentrl.envs import ToolEnv
from agentrl.types import AssistantTurn, Invalid, Json, Message, Task, ToolCall, ToolSchema

_HELP = "Write TOOL ARGUMENT, TOOL {JSON}, or text that begins with > to answer without a tool."


class PlayOptions(Config):
    """Which task."""

    task: int = Field(default=0, ge=0, description="Number of the task.")
    split: str = Field(default="train", description="Where the tasks come from.")
    seed: int = Field(default=0, description="Orders the tasks.")


def _run_env_play(options: PlayOptions, arguments: Arguments) -> int:
    env_class, config = load_env(arguments)
    env = env_class(config)
    task = env_class.task_at(options.task, split=options.split, seed=options.seed, config=config)
    return asyncio.run(_play_episode_by_hand(env, task, options))


async def _play_episode_by_hand(env: ToolEnv, task: Task, options: PlayOptions) -> int:
    schemas = {schema.name: schema for schema in env.tool_schemas}
    try:
        async with env.admission(task):
            await env.areset(seed=options.seed, options={"task": task, "split": options.split})
            try:
                _print_messages(env.conversation)
                usage = (
                    f"{name}({', '.join(_read_tool_properties(s))})" for name, s in schemas.items()
                )
                print(f"\ntools: {', '.join(usage)}\n{_HELP}")
                await _play_turns_from_input(env, schemas)
                outcome = await env.ascore()
            finally:
                await env.aclose()
    finally:
        env.services.close()
    if isinstance(outcome, Invalid):
        print(f"invalid: {one_line(outcome.reason)}")
        return 1
    parts = "".join(f", {name} {value:g}" for name, value in outcome.parts.items())
    reason = f": {one_line(outcome.reason)}" if outcome.reason else ""
    print(f"score {outcome.value:g}{parts}{reason}")
    return 0


async def _play_turns_from_input(env: ToolEnv, schemas: Mapping[str, ToolSchema]) -> None:
    stop = None
    while stop is None:
        print("\n> ", end="", flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)
        turn = _parse_typed_turn(line, schemas)
        if isinstance(turn, str):
            print(turn)
            continue
        transition = await env.advance(turn)
        _print_messages(transition.messages)
        stop = transition.stop
    print(f"\n[{stop}]")


def _parse_typed_turn(line: str, schemas: Mapping[str, ToolSchema]) -> AssistantTurn | str:
    """The turn of a line, or what is wrong with it; the end of the input is an empty turn."""
    text = line.strip()
    if not line or text.startswith(">"):
        return AssistantTurn(text=text.removeprefix(">").strip())
    name, _, rest = text.partition(" ")
    if name not in schemas:
        return _HELP
    needed = [*_read_tool_properties(schemas[name])]
    arguments: dict[str, Json] = {}
    if rest.startswith("{"):
        try:
            arguments = cast("dict[str, Json]", json.loads(rest))
        except ValueError as error:
            return f"that is no JSON: {error}"
    elif rest and needed:
        arguments = {needed[0]: rest}
    return AssistantTurn(calls=(ToolCall(name=name, arguments=arguments, id="call_0"),))


def _read_tool_properties(schema: ToolSchema) -> Mapping[str, object]:
    return cast("Mapping[str, object]", schema.parameters["properties"])


def _print_messages(messages: tuple[Message, ...]) -> None:
    for message in messages:
        label = f"{message.role} {message.name}".strip()
        print(f"\n--- {label} ---\n{message.content}")


COMMAND = Verb(
    summary="Play an episode by hand: a line is a turn.",
    examples=[
        "agentrl env play swe_sandbox",
        "agentrl env play swe_sandbox --task 3 --sandbox bwrap",
        "echo submit | agentrl env play swe_sandbox",
    ],
    options=PlayOptions,
    run=_run_env_play,
    takes=["ENV"],
    config=EnvFlags,
    short=SHORT,
)
