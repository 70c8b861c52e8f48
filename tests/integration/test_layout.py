"""The four top-level folders are packages of agentrl, and nothing else; importing is light."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ["envs", "tools", "sandboxes", "trainer"]


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", code]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", FOLDERS)
def test_each_link_is_its_folder(name: str) -> None:
    link = ROOT / "agentrl" / name
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.samefile(ROOT / name)


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_are_imported_as_agentrl_only(name: str, tmp_path: Path) -> None:
    assert python(f"import agentrl.{name}", tmp_path).returncode == 0
    found = python(f"import {name}; print({name}.__file__)", tmp_path)
    assert str(ROOT) not in found.stdout


@pytest.mark.parametrize(
    "module",
    ["agentrl", "agentrl.envs", "agentrl.rollout", "agentrl.orchestration.config", "agentrl.cli"],
)
def test_light_modules_load_neither_torch_nor_ray(module: str, tmp_path: Path) -> None:
    heavy = "('torch', 'transformers', 'ray')"
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    result = python(code, tmp_path)
    assert result.stdout.strip() == "[]", result.stderr
