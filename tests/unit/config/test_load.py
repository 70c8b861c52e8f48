import datetime as dt
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, Field, model_validator

from agentrl.config import Config, Loaded, dump_config, load_config, parse_params
from agentrl.config import draft as draft_module
from agentrl.config import load as load_module
from agentrl.config.dump import toml_value
from agentrl.config.flags import split_flags
from agentrl.errors import ConfigError


class Kind(StrEnum):
    FAST = "fast"
    SLOW = "slow"


class Clip(Config):
    low: float = Field(default=0.2, ge=0)
    high: float = Field(default=0.28, ge=0)


class Trainer(Config):
    lr: float = Field(default=1e-3, gt=0)
    clip: Clip = Clip()
    kind: Kind = Kind.FAST
    betas: tuple[float, float] = (0.9, 0.95)
    layers: tuple[int, ...] = ()
    limit: int | Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _ordered(self) -> "Trainer":
        if self.clip.low > 1:
            raise ValueError("clip.low is above 1")
        return self


class Rollout(Config):
    group_size: int = Field(default=8, ge=1)
    drop: bool = False
    weights: dict[str, float] = Field(default_factory=dict[str, float])


class Eval(Config):
    every: int = Field(default=10, ge=1)
    tasks: int = 100


class Entry(Config):
    model_config = ConfigDict(extra="allow")
    name: str
    weight: float = Field(default=1.0, gt=0)


class Shop(Config):
    size: int = Field(default=3, ge=1)
    word: str = "w"


class Parameters(Config):
    digits: int = Field(default=2, ge=1, le=9)
    code: str = "x"
    hard: bool = False
    shop: Shop = Shop()


class Tree(Config):
    model: str
    name: str | None = None
    runs_dir: Path = Path("runs")
    steps: int = Field(default=100, ge=1)
    words: tuple[str, ...] = ()
    env: tuple[Entry, ...] = ()
    trainer: Trainer = Trainer()
    rollout: Rollout = Rollout()
    eval: Eval | None = None


SHORT = {"word": "words", "lr": "trainer.lr", "group-size": "rollout.group_size"}


def parameters_of(name: str) -> type[Config]:
    if name == "nowhere":
        raise ConfigError("nowhere: no such environment")
    return Parameters


MISSING = "missing, expected TEXT; set it in the file or by a flag"


def load(*flags: str, file: Path | None = None) -> Loaded[Tree]:
    return load_config(Tree, file=file, flags=flags, short=SHORT, parameters={"env": parameters_of})


def problems(*flags: str, file: Path | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*flags, file=file)
    return str(caught.value).splitlines()


@pytest.fixture
def run_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("run.toml")


def test_later_layers_win_and_each_value_keeps_its_origin(run_toml: Path) -> None:
    run_toml.write_text('model = "m"\nsteps = 5\n[trainer]\nlr = 0.5\n[rollout]\ngroup_size = 2\n')
    loaded = load_config(
        Tree,
        file=run_toml,
        flags=["--lr", "0.25", "--rollout.group-size=4"],
        short=SHORT,
        preset=lambda given: [
            ({"trainer.lr": 0.1, "trainer.clip.high": 0.5}, "model preset", set()),
            ({"trainer.lr": 9.9, "steps": given["steps"].value}, "another preset", set()),
        ],
    )
    assert loaded.config.trainer.lr == 0.25
    assert loaded.config.steps == 5
    assert loaded.config.rollout.group_size == 4
    assert loaded.config.trainer.clip.high == 0.5
    assert loaded.origins["trainer.lr"] == "--lr"
    assert loaded.origins["steps"] == "run.toml"
    assert loaded.origins["rollout.group_size"] == "--rollout.group-size"
    assert loaded.origins["trainer.clip.high"] == "model preset"
    assert loaded.origins["trainer.clip.low"] == "default"
    assert loaded.where("steps") == "run.toml: steps"
    assert loaded.where("trainer.lr") == "--lr"
    assert loaded.where("trainer.clip.low") == "trainer.clip.low"


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (["--lr", ".5"], "trainer.lr", 0.5),
        (["--lr", "1e-3"], "trainer.lr", 1e-3),
        (["--lr", "2"], "trainer.lr", 2.0),
        (["--name", "12"], "name", "12"),
        (["--name", "true"], "name", "true"),
        (["--name=--odd"], "name", "--odd"),
        (["--name="], "name", ""),
        (["--name", "none"], "name", None),
        (["--rollout.drop"], "rollout.drop", True),
        (["--rollout.drop", "false"], "rollout.drop", False),
        (["--rollout.drop=true"], "rollout.drop", True),
        (["--runs-dir", "a/b"], "runs_dir", Path.cwd() / "a/b"),
        (["--runs_dir", "a/b"], "runs_dir", Path.cwd() / "a/b"),
        (["--trainer.layers", "[1, 2]"], "trainer.layers", (1, 2)),
        (["--trainer.limit", "3"], "trainer.limit", 3),
        (["--trainer.limit", "auto"], "trainer.limit", "auto"),
        (["--trainer.kind", "slow"], "trainer.kind", Kind.SLOW),
        (["--rollout.weights", "{a = 1}"], "rollout.weights", {"a": 1.0}),
        (["--eval.every", "3"], "eval.every", 3),
    ],
)
def test_flags_are_read_by_the_type_of_their_key(flags: list[str], key: str, value: object) -> None:
    got: Any = load("--model", "m", *flags).config
    for part in key.split("."):
        got = getattr(got, part)
    assert got == value
    assert type(got) is type(value)


def test_a_list_of_texts_is_given_an_item_each_time() -> None:
    assert load("--model", "m").config.words == ()
    assert load("--model", "m", "--words", "a/b").config.words == ("a/b",)
    assert load("--model", "m", "--words", "1", "--word", "b").config.words == ("1", "b")
    assert load("--model", "m", "--words", '["a", "b"]').config.words == ("a", "b")
    assert load("--model", "m", "--words", "[]").config.words == ()


@pytest.mark.parametrize(
    ("steps", "what"),
    [
        (object(), "a value of type object"),
        (dt.date(2020, 1, 1), "a value of type date"),
        (10**5000, "a value of type int"),
        ("a\udcff", "bytes that are not UTF-8"),
    ],
    ids=["object", "date", "long", "surrogate"],
)
def test_what_no_file_can_hold_is_refused(steps: object, what: str) -> None:
    with pytest.raises(ConfigError, match=f"keyword: steps: got {what}, expected"):
        load_config(Tree, keywords={"model": "m", "steps": steps})


def test_numbers_of_numpy_are_numbers() -> None:
    given = {"model": "m", "steps": np.int64(4), "trainer.lr": np.float64(0.5)}
    config = load_config(Tree, keywords=given).config
    assert (config.steps, config.trainer.lr) == (4, 0.5)


def test_a_flag_is_split_decoded_and_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line to the configuration; a flag that was split off goes on as it is."""
    calls: list[str] = []
    for module, name in ((load_module, "split_flags"), (draft_module, "decode_text")):
        monkeypatch.setattr(module, name, _counted(getattr(module, name), calls))
    monkeypatch.setattr(Tree, "model_validate_json", _counted(Tree.model_validate_json, calls))
    _, flags = split_flags(["--model", "m", "--lr", "1e-4"], lambda key: False)
    config = load_config(
        Tree, flags=flags, short=SHORT, preset=lambda given: [({"steps": 3}, "preset", set())]
    ).config
    assert (config.trainer.lr, config.steps) == (1e-4, 3)
    assert Counter(calls) == {"split_flags": 1, "decode_text": 2, "model_validate_json": 1}


def _counted(function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(function.__name__)
        return function(*args, **kwargs)

    return counted


def test_an_optional_section_is_switched_off_with_none(run_toml: Path) -> None:
    run_toml.write_text('model = "m"\n[eval]\nevery = 3\n')
    assert load(file=run_toml).config.eval == Eval(every=3)
    assert load("--eval", "none", file=run_toml).config.eval is None
    run_toml.write_text('model = "m"\neval = "none"\n')
    assert load(file=run_toml).config.eval is None
    assert load("--eval.every", "4", file=run_toml).config.eval == Eval(every=4)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "[trainer.clip]\nhihg = 1",
            ["run.toml: trainer.clip.hihg: unknown key, did you mean high?"],
        ),
        ("lr = 1", ["run.toml: lr: unknown key, did you mean trainer.lr?"]),
        (
            "zzz = 1\n[trainerr]\n[rollout]\nzzz = 1",
            [
                "run.toml: zzz: unknown key, there is env, eval, model, name, rollout, runs_dir,"
                " steps, trainer, words",
                "run.toml: trainerr: unknown key, did you mean trainer?",
                "run.toml: rollout.zzz: unknown key, there is drop, group_size, weights",
            ],
        ),
        ("steps = true", ["run.toml: steps: got true, expected an integer"]),
        ('steps = "5"', ["run.toml: steps: got 5, expected an integer"]),
        ("steps = 5.0", ["run.toml: steps: got 5.0, expected an integer"]),
        ("steps = 0", ["run.toml: steps: got 0, expected a number of at least 1"]),
        (
            "[trainer]\nlr = nan",
            ["run.toml: trainer.lr: got NaN, expected a finite number"],
        ),
        ("trainer = 3", ["run.toml: trainer: got 3, expected a table"]),
        ("[trainer]\nkind = 1", ["run.toml: trainer.kind: got 1, expected 'fast' or 'slow'"]),
        (
            "[trainer]\nlayers = [1, 'a']",
            ['run.toml: trainer.layers: got [1, "a"], expected an integer at item 1'],
        ),
        (
            "[trainer]\nbetas = [1]",
            ["run.toml: trainer.betas: got [1], expected a value at item 1"],
        ),
        ("[trainer.clip]\nlow = 2", ["run.toml: trainer: clip.low is above 1"]),
        ("[env]\nname = 'a'", ['run.toml: env: got {"name": "a"}, expected [[env]] tables']),
        (
            "[[env]]\nweight = 2",
            ["run.toml: env.name: missing, expected TEXT; set it in the file or by a flag"],
        ),
        (
            "[[env]]\nname = 'a'\ndigit = 2",
            ["run.toml: env.digit: unknown key, did you mean digits?"],
        ),
        (
            "[[env]]\nname = 'a'\n[[env]]\nname = 'b'\nshop.size = 0\nweight = -1",
            [
                "run.toml: env.1.shop.size: got 0, expected a number of at least 1",
                "run.toml: env.1.weight: got -1, expected a number above 0",
            ],
        ),
        ("[[env]]\nname = 'nowhere'", ["nowhere: no such environment"]),
        ("[[env]]\nname = 3\nzz = 1", ["run.toml: env.name: got 3, expected text"]),
        ("[[env]]\nzz = 1", [f"run.toml: env.name: {MISSING}"]),
        ("env = 3", ["run.toml: env: got 3, expected [[env]] tables"]),
    ],
)
def test_a_wrong_file_gets_one_sentence_per_mistake(
    run_toml: Path, text: str, lines: list[str]
) -> None:
    run_toml.write_text(f'model = "m"\n{text}\n')
    assert problems(file=run_toml) == lines


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        (["--trainer.lr", "abc"], ['--trainer.lr: got "abc", expected a number']),
        (["--group-size", "-1"], ["--group-size: got -1, expected a number of at least 1"]),
        (["--lr", "1e400"], ["--lr: got Infinity, expected a finite number"]),
        (["--lr"], ["--lr: got no value, expected NUMBER"]),
        (["--lr", "--steps", "3"], ["--lr: got no value, expected NUMBER"]),
        (["--grop-size", "4"], ["--grop-size: unknown flag, did you mean --group-size?"]),
        (
            ["--trainer.clip.hihg", "4"],
            ["--trainer.clip.hihg: unknown flag, did you mean --trainer.clip.high?"],
        ),
        (["--qqq", "4"], ["--qqq: unknown flag, see --help for all of them"]),
        (
            ["--env", "a", "--env", "b"],
            ["--env: given twice; write several as [[env]] tables in a TOML file"],
        ),
        (
            ["--lr", "1", "--trainer.lr", "2"],
            ["--trainer.lr: given twice (also as --lr); keep one"],
        ),
        (
            ["--trainer", "2"],
            ["--trainer: is a group of keys; set one of them, such as --trainer.lr"],
        ),
        (["extra"], ['got the argument "extra", expected flags only']),
        (["--rollout.drop=maybe"], ['--rollout.drop: got "maybe", expected true or false']),
        (["--env"], ["--env: got no value, expected a name"]),
        (["--env.digits", "3"], ["--env.digits: no env is set; pass --env NAME too"]),
        (
            ["--env", "a", "--env.digits", "0"],
            ["--env.digits: got 0, expected a number of at least 1"],
        ),
        (
            ["--env", "a", "--env.digit", "0"],
            ["--env.digit: unknown flag, did you mean --env.digits?"],
        ),
        (
            ["--env", "a", "--env.shop.siz", "0"],
            ["--env.shop.siz: unknown flag, did you mean --env.shop.size?"],
        ),
        (["--name", "a\udcff"], ["--name: got bytes that are not UTF-8, expected text"]),
        (["--env", "a\udcff"], ["--env: got bytes that are not UTF-8, expected text"]),
        (
            ["--steps", "x", "--zz", "1", "--lr", "y"],
            [
                "--zz: unknown flag, see --help for all of them",
                '--steps: got "x", expected an integer',
                '--lr: got "y", expected a number',
            ],
        ),
    ],
)
def test_a_wrong_flag_gets_one_sentence(flags: list[str], lines: list[str]) -> None:
    assert problems("--model", "m", *flags) == lines


def test_a_missing_value_is_named() -> None:
    assert problems() == ["model: missing, expected TEXT; set it in the file or by a flag"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "run.toml: no such file, expected a TOML file"),
        (b"a = 1\nb =\n", "run.toml: line 2, column 4: is not TOML: Invalid value"),
        (b"a = '\xff'", "run.toml: is not UTF-8 at byte 5, expected TOML"),
        (
            b"[a",
            "run.toml: end of document: is not TOML: "
            "Expected ']' at the end of a table declaration",
        ),
    ],
)
def test_an_unreadable_file_is_named_with_the_place(
    run_toml: Path, content: bytes | None, line: str
) -> None:
    if content is not None:
        run_toml.write_bytes(content)
    assert problems(file=run_toml) == [line]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert problems(file=tmp_path) == [f"{tmp_path}: cannot be read (Is a directory)"]


def test_env_flags_make_and_change_one_table() -> None:
    flags = ["--env.shop.size", "7", "--env", "a", "--env.code", "012", "--env.hard"]
    loaded = load("--model", "m", *flags, "--env.weight", "2")
    (entry,) = loaded.config.env
    assert (entry.name, entry.weight) == ("a", 2.0)
    extra = {"digits": 2, "code": "012", "hard": True, "shop": {"size": 7, "word": "w"}}
    assert entry.model_extra == extra
    assert loaded.origins["env.0.name"] == "--env"
    assert loaded.origins["env.0.code"] == "--env.code"
    assert loaded.origins["env.0.digits"] == "default"
    assert loaded.origins["env.0.shop.size"] == "--env.shop.size"


def test_env_name_keeps_the_parameters_of_the_table_of_that_name(run_toml: Path) -> None:
    run_toml.write_text("model='m'\n[[env]]\nname='a'\ndigits=3\n[[env]]\nname='b'\n")
    assert [e.name for e in load(file=run_toml).config.env] == ["a", "b"]
    assert load("--env", "a", file=run_toml).config.env[0].model_extra == {
        **Parameters().model_dump(),
        "digits": 3,
    }
    assert [e.name for e in load("--env", "c", file=run_toml).config.env] == ["c"]
    assert problems("--env.digits", "4", file=run_toml) == [
        "--env.digits: there are 2 [[env]] tables; set it in the file"
    ]


def test_a_row_whose_name_is_no_text_is_not_the_one_that_a_flag_names(run_toml: Path) -> None:
    run_toml.write_text("model='m'\n[[env]]\nname=2020-01-01\n[[env]]\nname='a'\ndigits=3\n")
    (entry,) = load("--env", "a", file=run_toml).config.env
    assert entry.model_extra == {**Parameters().model_dump(), "digits": 3}
    (line,) = problems("--env", "a", "--env.0.digits", "4", file=run_toml)
    assert line.startswith("--env.0.digits: unknown flag")


def test_parse_params_names_what_is_wrong() -> None:
    assert parse_params(Parameters, {"digits": 3}, "env") == Parameters(digits=3)
    with pytest.raises(ConfigError) as caught:
        parse_params(Parameters, {"digits": 0, "cod": 1, "hard": 3}, "env")
    assert str(caught.value).splitlines() == [
        "env.cod: unknown key, did you mean code?",
        "env.digits: got 0, expected a number of at least 1",
        "env.hard: got 3, expected true or false",
    ]


_NUMBERS = st.floats(min_value=1e-300, max_value=1e300)
_TEXT = st.text(st.characters(codec="utf-8")).filter(lambda text: text != "none")
_ROWS: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries(
    {
        "name": _TEXT,
        "weight": _NUMBERS,
        "code": _TEXT,
        "shop": st.builds(dict[str, object], word=_TEXT),
    }
)
_TRAINERS: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries(
    {
        "lr": _NUMBERS,
        "limit": st.integers() | st.just("auto"),
        "layers": st.lists(st.integers(-5, 5), max_size=3),
        "kind": st.sampled_from(["fast", "slow"]),
    }
)
_TREES: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries(
    {
        "model": _TEXT,
        "name": _TEXT | st.none(),
        "steps": st.integers(1, 2**70),
        "runs_dir": st.just("a b/\"c'"),
        "trainer": _TRAINERS,
        "rollout": st.builds(
            dict[str, object], weights=st.dictionaries(_TEXT, _NUMBERS, max_size=3)
        ),
        "eval": st.none() | st.builds(dict[str, object], every=st.integers(1, 9)),
        "env": st.lists(_ROWS, max_size=3),
    }
)


@given(tree=_TREES)
@settings(max_examples=25, deadline=None)
def test_a_dumped_configuration_loads_back_equal(
    tree: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    loaded = load_config(Tree, keywords=tree, parameters={"env": parameters_of})
    path = tmp_path_factory.getbasetemp() / "config.toml"
    path.write_text(dump_config(loaded), encoding="utf-8")
    assert load(file=path).config == loaded.config
    assert set(load(file=path).origins.values()) - {"default"} == {str(path)}


def test_the_dump_shows_where_each_value_came_from() -> None:
    text = dump_config(load("--model", "m", "--lr", "0.5", "--env", "a", "--env.digits", "3"))
    lines = text.splitlines()
    assert 'model = "m"  # --model' in lines
    assert "lr = 0.5  # --lr" in lines
    assert "digits = 3  # --env.digits" in lines
    assert 'eval = "none"  # default' in lines
    assert lines.index("[trainer.clip]") > lines.index("[trainer]") > lines.index("[[env]]")


def test_toml_value_refuses_what_is_no_toml() -> None:
    with pytest.raises(TypeError, match="got object"):
        toml_value(object())
