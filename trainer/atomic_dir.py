"""Folders that appear whole, and manifests that tell whether they still are."""

import hashlib
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, ValidationError
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException

from agentrl.config import Config
from agentrl.errors import RunError
from agentrl.run_dir.writing import sync, unwritable

MANIFEST = "manifest.json"


class FileEntry(Config):
    """One file as it was written."""

    size: int = Field(description="bytes")
    blake2b: str = Field(description="hash of the content")


class Manifest(Config):
    """What a folder holds."""

    format: int = Field(default=1, description="version of this layout")
    config_hash: str = Field(description="hash of the settings it was written under")
    metric: float | None = Field(
        default=None, description="what tells the best checkpoint: the highest; none without"
    )
    files: dict[str, FileEntry] = Field(description="each file by its path in the folder")


def unfinished_path(target: Path) -> Path:
    """Where a folder is written before it has its name."""
    return target.with_name(f".{target.name}.tmp")


@contextmanager
def unfinished_folder(target: Path) -> Generator[Path, None, None]:
    """An empty folder beside `target`; what is left of it after an error is removed."""
    unfinished = unfinished_path(target)
    shutil.rmtree(unfinished, ignore_errors=True)
    with disk_errors(target):
        unfinished.mkdir(parents=True)
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def replace_folder(unfinished: Path, target: Path) -> None:
    """Bring everything to the disk, then give it its name; a folder of that name is dropped."""
    for path in sorted(unfinished.rglob("*"), reverse=True):
        sync(path)
    sync(unfinished)
    if target.exists():
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        unfinished.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        unfinished.rename(target)
    sync(target.parent)


@contextmanager
def disk_errors(target: Path) -> Generator[None, None, None]:
    """Say in one sentence what could not be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise unwritable(target, error) from error
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise unwritable(target, first) from error


def write_manifest(folder: Path, settings: str, metric: float | None = None) -> None:
    """Describe every file of the folder."""
    files = {
        str(path.relative_to(folder)): FileEntry(size=path.stat().st_size, blake2b=_hash_file(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest = Manifest(config_hash=settings, metric=metric, files=files)
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1))


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest, or None if it is missing or unreadable."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError):
        return None


def check_manifest(folder: Path) -> Manifest:
    """Raise RunError naming the first file that is missing, cut or altered."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise RunError(f"{folder / MANIFEST} is missing or unreadable; use an earlier checkpoint")
    for name, entry in manifest.files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else -1
        if size != entry.size:
            got = "is missing" if size < 0 else f"has {size} bytes, expected {entry.size}"
            raise RunError(f"{path} {got}; use an earlier checkpoint")
        if _hash_file(path) != entry.blake2b:
            raise RunError(f"{path} was altered after it was written; use an earlier checkpoint")
    return manifest


def config_hash(config: Config) -> str:
    """A short hash of settings."""
    return hashlib.blake2b(config.model_dump_json().encode(), digest_size=8).hexdigest()


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
