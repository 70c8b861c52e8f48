"""Observers: what they are told, and that none of them stops a run."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

import agentrl
from agentrl.errors import ConfigError, RunError
from agentrl.orchestration.env_mix import Overrides
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.observers import (
    Journal,
    Observer,
    Observers,
    check_observers,
    make_observers,
)
from agentrl.run_dir import RunDirectory
from agentrl.types import Episode

HERE = f"{Path(__file__)}"


class Keeps(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.told.append(f"step {step}")

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        self.told.append(f"{len(episodes)} episodes")

    def warn(self, text: str) -> None:
        self.told.append(text)

    def close(self) -> None:
        self.told.append("closed")


class Broken(Keeps):
    """Cannot bear a second step."""

    error: BaseException = ValueError("no room")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == 2:
            raise self.error
        super().step(step, metrics)

    def close(self) -> None:
        raise OSError("closed before")


@pytest.mark.parametrize("error", [ValueError("no room"), SystemExit(3), RunError("no room")])
def test_one_that_raises_is_named_and_told_nothing_more(
    error: BaseException, tmp_path: Path
) -> None:
    broken, sound = Broken(), Keeps()
    broken.error = error
    with RunDirectory.create(tmp_path, "one") as directory:
        journal = Journal(directory, [broken, sound])
        for step in (1, 2, 3):
            journal.step(step, {})
        journal.close()
        journal.close()
        events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    assert broken.told == ["step 1"]
    [warning] = [told for told in sound.told if "step" not in told and told != "closed"] or [""]
    if not isinstance(error, RunError):
        name = type(error).__name__
        assert f"observer Broken.step raised {name}: {error} (" in (warning or sound.told[1])
    assert sound.told[0] == "step 1"
    assert sound.told[1].endswith("it is told nothing more of this run")
    assert sound.told[2:] == ["step 2", "step 3", "closed"]
    lost = [event for event in events if event["event"] == "observer_lost"]
    assert [event["number"] for event in lost] == [1]


def test_what_ends_a_run_still_ends_it() -> None:
    broken = Broken()
    broken.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        Observers([broken]).step(2, {})


def test_the_last_one_that_is_lost_is_said_anyway(caplog: pytest.LogCaptureFixture) -> None:
    told = Observers([Broken(), Broken()])
    with caplog.at_level(logging.WARNING):
        told.step(2, {})
        told.step(3, {})
    assert told.num_lost == 2
    assert len(caplog.records) == 1


def test_an_observer_has_the_methods_that_it_needs(tmp_path: Path) -> None:
    class Bare(agentrl.Observer):
        """None of them."""

    bare = Observers([Bare()])
    tell: list[Callable[[], None]] = [
        lambda: bare.phase("rollout"),
        lambda: bare.step(1, {}),
        lambda: bare.episodes(1, []),
        lambda: bare.note("n"),
        lambda: bare.warn("w"),
        bare.close,
    ]
    for each in tell:
        each()
    assert bare.num_lost == 0


def test_several_flags_are_several_observers(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('observers = ["mine.py:One"]\n')
    config = load_run_config(file=file).config
    assert config.observers == (f"{tmp_path}/mine.py:One",)
    flags = ["--observer", "json:A", "--observer", "x.py:B", "--observers", '["c:D", "e:F"]']
    config = load_run_config(file=file, flags=flags[:4]).config
    assert config.observers == ("json:A", f"{Path.cwd()}/x.py:B")
    assert load_run_config(flags=flags[4:]).config.observers == ("c:D", "e:F")
    with pytest.raises(ConfigError, match="given twice"):
        load_run_config(flags=["--steps", "1", "--steps", "2"])


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("json:JSONDecoder", "observer json:JSONDecoder is no Observer; make it a subclass of"),
        ("nothing", "observer nothing is unknown (your own is written pkg.mod:Name or path/file"),
        (f"{HERE}:Keepz", "did you mean Keeps?"),
        ("<Keeps>", "observer <Keeps> was an object in Python that no reference finds"),
    ],
)
def test_what_is_none_is_found_before_the_run(ref: str, said: str) -> None:
    config = load_run_config(keywords={"observers": [ref]}).config
    with pytest.raises(ConfigError) as caught:
        check_observers(config, Overrides())
    assert said in str(caught.value)


def test_objects_and_references_are_observers() -> None:
    sound = Keeps()
    objects = Overrides(given={"<Keeps>": sound})
    config = load_run_config(keywords={"observers": ["<Keeps>", f"{HERE}:Keeps"]}).config
    check_observers(config, objects)
    given, made = make_observers(config, objects)
    assert given is sound
    assert type(made).__name__ == "Keeps"


class Needs(Observer):
    def __init__(self, place: str = "") -> None:
        raise LookupError("no server")


def test_one_that_cannot_be_made_stops_the_run_before_it_begins() -> None:
    config = load_run_config(keywords={"observers": ["<Needs>"]}).config
    with pytest.raises(ConfigError, match="making observer <Needs> raised LookupError: no server"):
        make_observers(config, Overrides(given={"<Needs>": Needs}))
