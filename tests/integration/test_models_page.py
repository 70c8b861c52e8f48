"""The table of docs/models.md is what its command makes, and a few rows of it are made again."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of transformers are not typed)

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.engine.local.demands import check_outline
from agentrl.engine.local.models.quiet import quiet
from agentrl.errors import ConfigError
from benchmarks.architectures import ARCHITECTURES
from benchmarks.models import (
    HEADER,
    MAX_GAP,
    Found,
    make_config,
    measure,
    table_line,
    write_table,
)
from tests.one_thread import one_thread

__all__ = ["one_thread"]
PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def page_lines() -> list[str]:
    _, _, rest = PAGE.read_text().partition(HEADER)
    return rest.strip().split("\n")


def columns(line: str) -> list[str]:
    return [column.strip() for column in line.strip("|").split("|")]


def test_the_page_has_every_architecture_right_or_refused() -> None:
    lines = [columns(line) for line in page_lines()]
    assert [line[0] for line in lines] == list(ARCHITECTURES)
    assert len({kind for kind, _ in ARCHITECTURES.values()}) >= 45
    for _, engine, trainer, *rest in lines:
        if trainer:
            assert max(float(engine), float(trainer)) <= MAX_GAP
        else:
            assert len(engine.split()) > 5
            assert not any(rest)


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma2", "phi3 (long)", "lfm2"])
def test_a_row_is_made_again(name: str) -> None:
    found = measure(name)
    (line,) = (line for line in page_lines() if columns(line)[0] == name)
    if isinstance(found, Found):
        assert max(found.engine_gap, found.trainer_gap) < 1e-4
        # Gaps are roundings of one machine; the rest of the row is the same on each.
        assert columns(line)[3:] == columns(table_line(name, found))[3:]
    else:
        assert columns(line)[1] == found


FEW = ("gemma2", "gpt_oss", "llama", "llama4_text", "mpt", "phimoe", "stablelm", "zamba2")


@pytest.mark.parametrize("names", [FEW, pytest.param(ARCHITECTURES, marks=pytest.mark.nightly)])
@pytest.mark.timeout(300)
def test_a_dry_run_says_what_the_start_check_does(names: Collection[str]) -> None:
    """Of models whose code, and not only numbers, is refused."""
    said: dict[str, str] = {}
    kinds: Any = AutoModelForCausalLM
    for name in names:
        with quiet(), torch.device("meta"):
            model = kinds.from_config(make_config(name), attn_implementation="eager")
        try:
            check_outline(model, longest=128)
        except ConfigError as error:
            said[name] = str(error)
    lines = [columns(line) for line in page_lines()]
    refused = {name: why for name, why, trainer, *_ in lines if name in names and not trainer}
    assert said == {n: why for n, why in refused.items() if "otherwise than the model's" not in why}
    assert len(said) >= 4


def test_the_table_of_a_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{HEADER}\n| old | x |\n\nafter\n")
    write_table(page, [HEADER, "| new | y |"])
    assert page.read_text() == f"before\n\n{HEADER}\n| new | y |\n\nafter\n"
