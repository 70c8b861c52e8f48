"""Source archives: from the package index or a local folder, checked by hash, unpacked once.

In the cache's folder `tasks`: `archives/NAME-VERSION.tar.gz`, `trees/NAME-VERSION-HASH/` (the
archive's single top folder) and `tools-HASH/` (pytest and what else tests import).
"""

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentrl.engine.local.models.resolve import default_cache_dir
from agentrl.errors import ConfigError

PYTEST: Final = "pytest==9.0.3"
_SPEC: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_PIP_TIMEOUT_S: Final = 600.0
_LEFT_OUT: Final = shutil.ignore_patterns(
    ".git", ".hg", ".venv", "venv", ".tox", ".nox", "__pycache__", "*.pyc", "build", "dist"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A source archive on this machine."""

    name: str
    version: str
    data: bytes

    @property
    def sha256(self) -> str:
        """Its hash."""
        return hashlib.sha256(self.data).hexdigest()


def cache_folder() -> Path:
    """Where archives, trees and tools are kept."""
    folder = default_cache_dir() / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch(spec: str, sha256: str = "") -> Archive:
    """The source archive of `NAME==VERSION`, or of a folder.

    Args:
        spec: what to get.
        sha256: the hash that it must have; "": any.

    Raises:
        ConfigError: There is no such archive, or it has another hash.
    """
    match = _SPEC.fullmatch(spec)
    archive = _download_archive(match[1], match[2]) if match else _pack_folder(Path(spec))
    if sha256 and archive.sha256 != sha256:
        raise ConfigError(
            f"the archive of {spec} has the hash {archive.sha256[:12]}, expected {sha256[:12]}; "
            "it was replaced or damaged: nothing of it is used"
        )
    return archive


def _pack_folder(folder: Path) -> Archive:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: got neither NAME==VERSION nor a folder that exists")
    name = re.sub(r"[^A-Za-z0-9._-]", "-", folder.resolve().name)
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(fileobj=packed, mode="w") as tar:
        copy = Path(scratch) / name
        shutil.copytree(folder, copy, ignore=_LEFT_OUT)
        for path in sorted(copy.rglob("*")):
            tar.add(path, str(path.relative_to(scratch)), recursive=False, filter=_anonymise)
    return Archive(name=name, version="0", data=packed.getvalue())


def _anonymise(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without times and owners, so that the same folder has the same hash."""
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _download_archive(name: str, version: str) -> Archive:
    kept = cache_folder() / "archives"
    kept.mkdir(exist_ok=True)
    path, wanted = kept / f"{name}-{version}.tar.gz", f"{name}=={version}"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=kept) as scratch:
            _run_pip(
                ["download", "--no-deps", f"--no-binary={name}", f"--dest={scratch}", wanted],
                f"{wanted} has no source archive in the package index",
            )
            found = [*Path(scratch).glob("*.tar.gz")]
            if len(found) != 1:
                raise ConfigError(f"{wanted}: its source archive is no .tar.gz")
            found[0].replace(path)
    return Archive(name=name, version=version, data=path.read_bytes())


def unpack(archive: Archive) -> Path:
    """The archive's content, from the cache if it is there.

    Raises:
        ConfigError: It is damaged, or a member would lie outside of its folder.
    """
    tree = _make_unpacked_archive_path(archive.name, archive.version, archive.sha256)
    if not tree.exists():
        with tempfile.TemporaryDirectory(dir=tree.parent) as scratch:
            try:
                with tarfile.open(fileobj=io.BytesIO(archive.data)) as tar:
                    tar.extractall(scratch, filter="data")
            except (tarfile.TarError, OSError, EOFError) as error:
                raise ConfigError(f"the archive of {archive.name} is damaged: {error}") from error
            tops = [*Path(scratch).iterdir()]
            if len(tops) != 1 or not tops[0].is_dir():
                raise ConfigError(f"the archive of {archive.name} holds no single top folder")
            tops[0].replace(tree)
    return tree


def unpacked(name: str, version: str, sha256: str) -> Path:
    """The content of a record's archive: from the cache, else from the package index.

    Raises:
        ConfigError: It is in neither of the two, or has another hash.
    """
    tree = _make_unpacked_archive_path(name, version, sha256)
    return tree if tree.exists() else unpack(fetch(f"{name}=={version}", sha256))


def _make_unpacked_archive_path(name: str, version: str, sha256: str) -> Path:
    trees = cache_folder() / "trees"
    trees.mkdir(exist_ok=True)
    return trees / f"{name}-{version}-{sha256[:16]}"


def install_tools(requires: Sequence[str] = ()) -> Path:
    """A folder with pytest and other packages, installed once for each set of them.

    Raises:
        ConfigError: pip cannot install one of them.
    """
    wanted = sorted({PYTEST, *requires})
    folder = cache_folder() / f"tools-{hashlib.sha256(repr(wanted).encode()).hexdigest()[:16]}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            target = Path(scratch) / "tools"
            _run_pip(["install", "--target", str(target), *wanted], f"cannot install {wanted}")
            target.replace(folder)
    return folder


def _run_pip(arguments: Sequence[str], failed: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{failed}: pip took longer than {_PIP_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["no message"]
        raise ConfigError(f"{failed}; pip said: {said[-1].removeprefix('ERROR: ')}")
