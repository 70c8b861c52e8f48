"""Kinds of engines: built in, and of a user's."""

from pathlib import Path
from typing import Any, cast

import pytest

import agentrl
from agentrl.errors import ConfigError
from agentrl.orchestration.env_mix import NO_OBJECTS, Overrides
from agentrl.orchestration.kinds import (
    EngineKind,
    EngineSetup,
    LocalKind,
    SglangKind,
    engine_kind,
    start_engine,
)
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.preflight import make_plan

OWN = f"{Path(__file__).parents[3]}/examples/extending/engine.py:Expert"


def kind_of(*flags: str, objects: Overrides = NO_OBJECTS) -> EngineKind:
    return engine_kind(load_run_config(flags=flags).config, objects)


def test_the_built_in_ones_are_found() -> None:
    assert type(kind_of()) is LocalKind
    assert type(kind_of("--engine", "sglang")) is SglangKind
    assert type(kind_of("--engine-url", "http://a:1")) is SglangKind


class Silent(EngineKind):
    def start(self, setup: EngineSetup) -> Any:
        return 7


class Broken(EngineKind):
    def start(self, setup: EngineSetup) -> Any:
        raise LookupError("no licence")


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("sgland", "did you mean sglang?"),
        ("json:JSONDecoder", "engine json:JSONDecoder is no EngineKind; name a subclass of it"),
        (OWN.replace("Expert", "Expertt"), "did you mean Expert?"),
    ],
)
def test_what_is_none_is_found_before_the_run(ref: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind_of("--engine", ref)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Silent, "engine <it>: start gave a int without generate, update_weights, aclose, expecte"),
        (
            Broken,
            "engine <it>: start raised LookupError: no licence (tests/unit/orches",
        ),
    ],
)
def test_what_starts_nothing_is_said_in_one_sentence(kind: Any, said: str) -> None:
    config = load_run_config(flags=["--engine", "<it>"]).config
    setup = EngineSetup(
        config=config,
        folder=Path(),
        codec=cast("Any", None),
        envs=(),
        context_length=1,
    )
    with pytest.raises(ConfigError) as caught:
        start_engine(engine_kind(config, Overrides(given={"<it>": kind})), setup)
    assert said in str(caught.value)


def test_an_engine_that_ignores_seeds_is_not_deterministic() -> None:
    flags = ["--env", "calculator", "--engine", "<it>", "--deterministic"]
    config = load_run_config(flags=flags).config
    with pytest.raises(ConfigError, match="got true with engine <it>, which ignores seeds"):
        make_plan(config, Overrides(given={"<it>": Silent}), train=False, scripted=True)


def test_an_evaluation_is_played_by_one_s_own(tmp_path: Path) -> None:
    result = agentrl.evaluate(
        "calculator", engine=OWN, runs_dir=str(tmp_path), threads=1, eval={"tasks": 3}
    )
    assert (result.episodes, result.reward) == (3, 1.0)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--engine.relays http://a:1", "engine.relays: no server is on a"),
        ("--engine.sglang.url http://b:2 --engine.relays http://a:1", "but a server is on b"),
        ("--engine vllm --engine.share-device true", "a vLLM server keeps its memory"),
        ("--engine.vllm.url http://b:2 --engine.share-device true", "a vLLM server keeps"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_the_dry_run_too(flags: str, said: str) -> None:
    config = load_run_config(flags=["--env", "calculator", *flags.split()]).config
    with pytest.raises(ConfigError, match=said):
        make_plan(config)
