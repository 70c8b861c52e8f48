"""The separate virtual environment that the SGLang server lives in.

The server needs versions of torch and transformers of its own, so it never shares ours. On a CPU
the published packages are enough, without their GPU dependencies and with the stand-ins of
`shims/`; what was installed is written into the environment once it is complete.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from agentrl.engine.local.models.resolve import default_cache_dir
from agentrl.errors import ConfigError

SGLANG = "0.5.23"
"""The version that is installed and that the tests run against."""
SHIMS = Path(__file__).parent / "shims"

Flavour = Literal["cpu", "gpu"]
_STAMP = "agentrl-complete"
_BYTES_NEEDED = {"cpu": 4 << 30, "gpu": 20 << 30}
_PIP_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A complete virtual environment with a server in it."""

    folder: Path
    flavour: Flavour

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"


def default_folder() -> Path:
    """`AGENTRL_SGLANG` if set, else a folder of the cache."""
    given = os.environ.get("AGENTRL_SGLANG")
    return Path(given) if given else default_cache_dir() / f"sglang-{SGLANG}"


def installed(folder: Path | None = None) -> Installation | None:
    """The complete installation of a folder, if there is one."""
    folder = folder or default_folder()
    try:
        flavour = (folder / _STAMP).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return (
        Installation(folder=folder, flavour=cast("Flavour", flavour))
        if flavour in get_args(Flavour)
        else None
    )


def require_installed() -> Installation:
    """The installation.

    Raises:
        ConfigError: there is none.
    """
    found = installed()
    if found is None:
        raise ConfigError(
            f"SGLang is not installed in {default_folder()}; run: agentrl engine install sglang "
            "(with --cpu on a machine without a GPU)"
        )
    return found


def install(flavour: Flavour, say: Callable[[str], None] = lambda _: None) -> Installation:
    """Make the environment unless it is there: about 70 s and 2.8 GB for a CPU.

    Raises:
        ConfigError: the disk is too full, or pip failed; the message holds pip's last words.
    """
    folder = default_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second installation waits for the first
        found = installed(folder)
        if found is not None and found.flavour == flavour:
            return found
        _check_free_disk(folder.parent, _BYTES_NEEDED[flavour])
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted installation left
        say(f"making {folder}")
        _run_install_command([sys.executable, "-m", "venv", str(folder)])
        for packages in _list_arguments_of_pip_calls(flavour):
            say(f"pip install {' '.join(packages)}")
            _run_install_command(
                [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages]
            )
        (folder / _STAMP).write_text(f"{flavour}\n", encoding="utf-8")
    return Installation(folder=folder, flavour=flavour)


def _list_arguments_of_pip_calls(flavour: Flavour) -> Sequence[Sequence[str]]:
    """Arguments of pip, one list per call."""
    if flavour == "gpu":
        return [[f"sglang=={SGLANG}"]]
    return [
        ["torch==2.13.0"],
        # Without dependencies: their versions are those of the GPU build, 6 GB of them.
        ["--no-deps", f"sglang=={SGLANG}", "torchvision==0.28.0"],
        ["-r", str(Path(__file__).parent / "cpu.txt")],
    ]


def _run_install_command(command: Sequence[str]) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=_PIP_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{' '.join(command[1:4])} failed: {error}") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["no message"]
        raise ConfigError(f"{' '.join(command[1:4])} failed: {said[-1].removeprefix('ERROR: ')}")


def _check_free_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"{folder} has {free / 1e9:.1f} GB free, SGLang needs {needed / 1e9:.1f} GB; free some "
            "space or set AGENTRL_SGLANG to a folder on another disk"
        )
