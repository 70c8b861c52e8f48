"""The separate virtual environment that a server lives in.

A server needs versions of torch and transformers of its own, so it never shares ours. What was
installed is written into the environment once it is complete.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from agentrl.engine.local.models.resolve import default_cache_dir
from agentrl.errors import ConfigError

Flavour = Literal["cpu", "gpu"]
_STAMP = "agentrl-complete"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A server that can be installed."""

    name: str
    """That of the engine, as commands have it."""
    title: str
    """As its makers write it."""
    version: str
    """The one that is installed and that the tests run against."""
    pip: Mapping[Flavour, Sequence[Sequence[str]]]
    """Arguments of pip, one list per call."""
    num_bytes: Mapping[Flavour, int]
    """That must be free."""

    @property
    def variable(self) -> str:
        """The environment variable that names another folder."""
        return f"AGENTRL_{self.name.upper()}"

    @property
    def folder(self) -> Path:
        """Where it is: that of the variable if set, else a folder of the cache."""
        given = os.environ.get(self.variable)
        return Path(given) if given else default_cache_dir() / f"{self.name}-{self.version}"

    def installed(self, folder: Path | None = None) -> Installation | None:
        """The complete installation of a folder, if there is one."""
        folder = folder or self.folder
        try:
            flavour = (folder / _STAMP).read_text(encoding="utf-8").strip()
        except OSError:
            return None
        return (
            Installation(folder=folder, flavour=cast("Flavour", flavour))
            if flavour in get_args(Flavour)
            else None
        )

    def require(self) -> Installation:
        """The installation.

        Raises:
            ConfigError: there is none.
        """
        found = self.installed()
        if found is None:
            raise ConfigError(
                f"{self.title} is not installed in {self.folder}; run: agentrl engine install "
                f"{self.name} (with --cpu on a machine without a GPU)"
            )
        return found

    def install(
        self, flavour: Flavour, say: Callable[[str], None] = lambda _: None
    ) -> Installation:
        """Make the environment unless it is there: one to two minutes for a CPU.

        Raises:
            ConfigError: the disk is too full, or pip failed; the message holds pip's last words.
        """
        folder = self.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f".{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second installation waits for the first
            found = self.installed(folder)
            if found is not None and found.flavour == flavour:
                return found
            self._check_free_disk(folder.parent, self.num_bytes[flavour])
            shutil.rmtree(folder, ignore_errors=True)  # what an interrupted installation left
            say(f"making {folder}")
            _run_install_command([sys.executable, "-m", "venv", str(folder)])
            for packages in self.pip[flavour]:
                say(f"pip install {' '.join(packages)}")
                _run_install_command(
                    [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages]
                )
            (folder / _STAMP).write_text(f"{flavour}\n", encoding="utf-8")
        return Installation(folder=folder, flavour=flavour)

    def _check_free_disk(self, folder: Path, needed: int) -> None:
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise ConfigError(
                f"{folder} has {free / 1e9:.1f} GB free, {self.title} needs {needed / 1e9:.1f} GB; "
                f"free some space or set {self.variable} to a folder on another disk"
            )


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
