"""An installation without extras: what works, and what names the extra that it needs."""

import re
import subprocess
import sys
from pathlib import Path

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(", "), None))
from agentrl.cli.dispatch import main
for command in sys.argv[2:]:
    sys.stderr.write(f"EXIT {main(command.split())}\\n")
"""
ALL = "torch, transformers, safetensors, peft"
TRAIN = "not installed here: pip install 'agentrl[train]'"


def run_without(packages: str, folder: Path, *commands: str) -> dict[str, str | None]:
    """The error of each command where the packages are not installed; None: it succeeded."""
    argv = [sys.executable, "-c", WITHOUT, packages, *commands]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    said = re.split(r"^EXIT (\d+)\n", done.stderr, flags=re.MULTILINE)
    errors = [text.removeprefix("agentrl: error: ").removesuffix("\n") for text in said[0:-1:2]]
    assert [code == "0" for code in said[1::2]] == [not error for error in errors]
    return dict(zip(commands, (error or None for error in errors), strict=True))


def test_without_extras_scripted_agents_play_and_the_rest_names_what_it_needs(
    tmp_path: Path,
) -> None:
    expected = {
        "eval --env calculator --agent oracle --eval.tasks 4": None,
        "template check tiny --json": None,
        "env check number_guess --tasks 1 --model tiny": None,
        "train --env calculator --dry-run": f"training needs {ALL}, {TRAIN}",
        "train --env calculator --dry-run --device-memory 24GB": f"training needs {ALL}, {TRAIN}",
        "train --env calculator --steps 1": f"training needs {ALL}, {TRAIN}",
        "sft --env calculator": f"training needs {ALL}, {TRAIN}",
        "eval --env calculator": f"a model needs {ALL}, {TRAIN}",
        "export last out": f"agentrl export needs torch, {TRAIN}",
        "engine serve local": f"agentrl engine needs torch, {TRAIN}",
        "engine check http://127.0.0.1:1": f"agentrl engine needs torch, {TRAIN}",
        "template check smollm2-135m": f"the model smollm2-135m needs {ALL}, gguf, {TRAIN}",
        "eval --env calculator --verifier reward_model:/nowhere --agent oracle": (
            f"a reward model needs {ALL}, {TRAIN}"
        ),
    }
    assert run_without(f"{ALL}, gguf, matplotlib, docker", tmp_path, *expected) == expected


def test_one_missing_package_is_named(tmp_path: Path) -> None:
    expected = {
        "train --env calculator --dry-run": f"training needs peft, {TRAIN}",
        "eval --agent oracle --env code_sandbox --sandbox docker": (
            "the sandbox backend docker needs docker, not installed here: "
            "pip install 'agentrl[docker]'"
        ),
    }
    assert run_without("peft, docker", tmp_path, *expected) == expected
