"""References to user code, and what each kind of mistake is answered with."""

import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.config.nearest import nearest
from agentrl.config.references import load_reference
from agentrl.errors import ConfigError
from agentrl.terminated import Terminated, terminate
from agentrl.workers import pickling


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def message(ref: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_reference(ref, "environment")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_module_attribute_and_nested_name() -> None:
    import json.decoder

    assert load_reference("json.decoder:JSONDecoder", "x") is json.decoder.JSONDecoder
    assert load_reference("json:JSONDecoder.decode", "x") is json.JSONDecoder.decode


def test_file_is_loaded_once_whatever_it_is_called(here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub/rules.py").write_text("import sys\nclass Mine: pass\nloads = [1]\n")
    first = load_reference("sub/rules.py:Mine", "x")
    assert load_reference(f"{here}/sub/../sub/rules.py:Mine", "x") is first
    assert isinstance(first, type)
    assert sys.modules[first.__module__].Mine is first


@given(st.lists(st.integers(0, 9), min_size=2, max_size=6), st.booleans())
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_is_loaded_as_it_is_now(here: Path, values: list[int], beside: bool) -> None:
    """Other text of the same length in the same second, in the file itself or in a neighbour."""
    changed = here / ("rules_beside.py" if beside else "rules.py")
    if beside:
        (here / "rules.py").write_text("from rules_beside import rule\nclass Mine: pass\n")
    loaded: dict[int, object] = {}
    for value in values:
        changed.write_text(f"def rule(): return {value}\nclass Mine: pass\n")
        found = load_reference("rules.py:rule", "x")
        assert callable(found)
        assert found() == value
        mine = load_reference("rules.py:Mine", "x")
        assert isinstance(mine, type)
        assert vars(sys.modules[mine.__module__])["rule"] is found
        loaded[value] = found
    assert all(callable(rule) and rule() == value for value, rule in loaded.items())
    assert not list((here / "__pycache__").glob("rules.*")) if not beside else True


def test_a_neighbour_without_the_name_is_read_again(here: Path) -> None:
    (here / "late_one.py").write_text("OTHER = 1\n")
    (here / "env.py").write_text("from late_one import VALUE\n")
    assert "cannot import name 'VALUE'" in message("env.py:VALUE")
    (here / "late_one.py").write_text("VALUE = 1\n")
    assert load_reference("env.py:VALUE", "x") == 1
    (here / "two.py").write_text("from late_one import VALUE\n")
    (here / "late_one.py").write_text("VALUE = 2\n")
    assert [load_reference(f"{name}.py:VALUE", "x") for name in ("env", "two", "env")] == [2, 2, 2]


def test_what_was_loaded_travels_as_it_was(here: Path) -> None:
    (here / "rules.py").write_text("def rule(): return 1\n")
    old = load_reference("rules.py:rule", "x")
    (here / "rules.py").write_text("def rule(): return 2\n")
    new = load_reference("rules.py:rule", "x")
    data = pickling.dumps([old, new])
    (here / "rules.py").write_text("def rule(): return 3\n")
    code = "import pickle, sys; print([f() for f in pickle.load(sys.stdin.buffer)])"
    run = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert run.stdout == b"[1, 2]\n"
    assert [rule() for rule in pickle.loads(data)] == [1, 2]
    assert pickle.loads(data)[0] is old


def test_same_file_names_in_two_folders_are_two_modules(here: Path) -> None:
    for folder in ("a", "b"):
        (here / folder).mkdir()
        (here / folder / "env.py").write_text(f"NAME = {folder!r}\n")
    assert load_reference("a/env.py:NAME", "x") == "a"
    assert load_reference("b/env.py:NAME", "x") == "b"


def test_a_file_imports_its_neighbours(here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub/neighbour_of_mine.py").write_text("VALUE = 7\n")
    (here / "sub/mine.py").write_text("from neighbour_of_mine import VALUE\n")
    assert load_reference("sub/mine.py:VALUE", "x") == 7


def test_dataclasses_work_in_a_file(here: Path) -> None:
    (here / "d.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass D:\n    x: int = 3\n"
    )
    made = load_reference("d.py:D", "x")
    assert isinstance(made, type)
    assert repr(made()) == "D(x=3)"


def test_module_in_the_current_directory(here: Path) -> None:
    (here / "my_local_pkg").mkdir()
    (here / "my_local_pkg/rules.py").write_text("ANSWER = 42\n")
    assert load_reference("my_local_pkg.rules:ANSWER", "x") == 42


def test_current_directory_shadows_nothing(here: Path) -> None:
    (here / "wave.py").write_text("open = None\n")
    assert callable(load_reference("wave:open", "x"))


@pytest.mark.parametrize("ref", ["x", "x:", ":y", "path/file.py", ""])
def test_not_a_reference(ref: str) -> None:
    assert "is not a reference: expected pkg.mod:Name or path/file.py:Name" in message(ref)


def test_missing_file_and_module(here: Path) -> None:
    assert message("no/such.py:X") == (
        f"environment no/such.py:X cannot be imported: there is no file {here}/no/such.py"
    )
    assert message("no_such_pkg.mod:X") == (
        "environment no_such_pkg.mod:X cannot be imported: no module no_such_pkg was found, "
        f"neither installed nor in {here}"
    )
    assert "no module json.nothing was found" in message("json.nothing:X")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "\n\nimport no_such_foo",
            "ModuleNotFoundError: No module named 'no_such_foo' ({}, line 3)",
        ),
        ("def f(:\n", "SyntaxError: invalid syntax ({}, line 1)"),
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero ({}, line 2)"),
        ("import sys\nsys.exit(3)", "SystemExit: 3 ({}, line 2)"),
        ("def f():\n    raise ValueError\nf()", "ValueError ({}, line 2)"),
        ("raise OSError('two\\nlines')", "OSError: two lines ({}, line 1)"),
        ("import json\njson.loads('')", "JSONDecodeError: Expecting value"),
    ],
)
@pytest.mark.parametrize("place", ["broken.py", "broken"])
def test_code_that_does_not_import(here: Path, code: str, expected: str, place: str) -> None:
    (here / "broken.py").write_text(code)
    found = message(f"{place}:Env")
    start = f"environment {place}:Env cannot be imported: "
    assert found.startswith(start + expected.format("broken.py"))


def test_failed_file_is_not_half_loaded(here: Path) -> None:
    (here / "broken.py").write_text("1 / 0")
    message("broken.py:Env")
    (here / "broken.py").write_text("Env = 'mended now'")
    assert load_reference("broken.py:Env", "x") == "mended now"


def test_missing_name_suggests_the_nearest(here: Path) -> None:
    (here / "env.py").write_text("class Calculator: pass\n")
    assert message("env.py:Calculater") == (
        "environment env.py:Calculater does not exist: env.py has no Calculater, "
        "did you mean Calculator?"
    )
    assert "json has no JSONDecodr, did you mean JSONDecoder?" in message("json:JSONDecodr")


def test_references_are_light() -> None:
    code = "import sys, agentrl.config.references; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("hihg", ["low", "high"], "did you mean high?"),
        ("exactnumber", ["ExactNumber"], "did you mean ExactNumber?"),
        ("zzz", ["b", "a"], "there is a, b"),
        ("zzz", [], "there is none"),
    ],
)
def test_nearest(name: str, names: list[str], expected: str) -> None:
    assert nearest(name, names) == expected


@given(st.text(max_size=10), st.lists(st.text(max_size=10), max_size=5))
def test_nearest_is_total(name: str, names: list[str]) -> None:
    assert nearest(name, names)
    if name in names:
        assert nearest(name, names) == f"did you mean {name}?" or not name


def test_a_signal_while_a_file_is_loaded_is_no_fault_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text("import signal\nsignal.raise_signal(signal.SIGTERM)\nName = 1\n")
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with pytest.raises(Terminated):
            load_reference(f"{file}:Name", "thing")
    finally:
        signal.signal(signal.SIGTERM, before)
