"""What fits a device, said from a configuration."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli.dispatch import main as agentrl
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.errors import ConfigError
from agentrl.orchestration.budget import memory_fit, parse_size
from agentrl.orchestration.load import load_run_config

ROOT = Path(__file__).parents[3]
FLAGS = ["--env", "calculator", "--rollout.max-context-tokens", "512"]


def parts(*flags: str) -> dict[str, int]:
    config = load_run_config(flags=[*FLAGS, *flags]).config
    return dict(memory_fit(config, "80GB").parts)


def test_sizes() -> None:
    assert parse_size("24GB") == 24 * 10**9
    assert parse_size(" 1.5 gib") == 3 * 2**29
    for wrong in ("24", "GB", "-1GB", "24 bananas"):
        with pytest.raises(ConfigError, match="expected a size such as 24GB"):
            parse_size(wrong)


def test_each_setting_moves_its_own_part() -> None:
    plain, other = parts(), parts("--trainer.algorithm", "ppo", "--trainer.kl.coef", "0.1")
    assert plain["gradients"] == plain["weights"] == plain["optimizer"] // 2
    assert plain["critic"] == plain["reference"] == plain["engine weights"] == 0
    assert other["reference"] == plain["weights"]
    assert plain["weights"] * 2 < other["critic"] <= plain["weights"] * 3
    lora = parts("--trainer.lora.rank", "4")
    assert lora["gradients"] < 0.2 * plain["gradients"]
    assert lora["engine weights"] == plain["weights"]
    assert (
        parts("--trainer.lora.rank", "4", "--trainer.lora.publish", "adapter")["engine weights"]
        == 0
    )
    again = parts("--trainer.activation-checkpointing", "true")
    assert again["activations"] < 0.5 * plain["activations"]
    card = "--trainer.device", "auto"
    offload = parts(*card, "--trainer.offload", "true")
    assert 0 < offload["weights"] == offload["gradients"] < parts(*card)["weights"]
    assert offload["optimizer"] == 0
    double = parts("--trainer.token-budget", "8192")
    assert double["activations"] == pytest.approx(2 * plain["activations"], rel=0.05)


def test_a_reference_counts_at_its_own_size(tmp_path: Path) -> None:
    teacher = Path(shutil.copytree(resolve_model("tiny"), tmp_path / "teacher"))
    shape = json.loads((teacher / "config.json").read_text())
    shape["num_hidden_layers"] *= 3
    (teacher / "config.json").write_text(json.dumps(shape))
    plain = parts("--trainer.kl.coef", "0.1")
    for lora in ("0", "4"):
        flags = ["--trainer.reference", str(teacher), "--trainer.lora.rank", lora]
        other = parts("--algorithm", "distill", *flags)
        assert 2 * plain["reference"] < other["reference"] < 3 * plain["reference"]
        assert other["weights"] >= plain["weights"]
    assert parts("--trainer.kl.coef", "0.1", "--trainer.lora.rank", "4")["reference"] == 0


def test_the_command_names_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    dry = ["train", *FLAGS, "--dry-run", "--device-memory"]
    assert agentrl([*dry, "80GB"]) == 0
    assert "80 GB: fits" in capsys.readouterr().out
    assert agentrl([*dry, "300MB", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is False
    assert agentrl([*dry, "300MB", *" ".join(found["ways_out"]).split()]) == 0
    assert agentrl([*dry, "1MB"]) == 1
    assert "no setting makes it fit" in capsys.readouterr().out
    assert agentrl(["train", *FLAGS, "--device-memory", "24GB"]) == 2


def test_the_table_is_what_the_command_says() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "one_gpu.py", "0.5B"],
        capture_output=True,
        text=True,
        check=True,
    )
    page = (ROOT / "docs" / "one_gpu.md").read_text(encoding="utf-8")
    assert done.stdout in page[page.index("| model | as it is") :]


def test_a_kind_of_engine_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "kind.py").write_text(
        "from agentrl.engine.protocol import Footprint\n"
        "from agentrl.orchestration.kinds import EngineKind\n\n"
        "class Spread(EngineKind):\n"
        "    def footprint(self, config, *, rows, longest):\n"
        "        return Footprint(\n"
        "            longest=longest, cached_tokens=100, dtype='bfloat16', num_devices=4\n"
        "        )\n"
    )
    plain, spread = parts(), parts("--engine.kind", f"{tmp_path}/kind.py:Spread")
    assert spread["engine weights"] == plain["weights"] // 8
    assert spread["cache"] < plain["cache"]
    own = parts("--engine.share-weights", "false")
    assert own["engine weights"] == plain["weights"]
    there = parts("--engine.sglang.url", "http://127.0.0.1:1")
    assert there["engine weights"] == there["cache"] == 0
