"""From the name of a model to a folder: built-in names, local folders, hub names.

Nothing here needs torch: what is wrong with a name is said before anything heavy is imported.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, cast

from agentrl.config.anchor import Anchor
from agentrl.engine.local.models.files import read_json, weight_files
from agentrl.engine.local.models.settings import check_numbers
from agentrl.errors import ConfigError
from agentrl.extras import TRAIN, require

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
ModelName = Annotated[str, Anchor("folder", (TINY, SMOLLM2))]
"""What `resolve_model` takes."""
_PROBE_TIMEOUT_S = 3.0


def default_cache_dir() -> Path:
    """`AGENTRL_CACHE`, else `agentrl` in the user's cache directory."""
    own = os.environ.get("AGENTRL_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "agentrl"


def check_model(name: str) -> None:
    """Raise ConfigError if `resolve_model` could not succeed; makes and fetches nothing."""
    folder = _resolve_model_folder_path(name)
    if name in (TINY, SMOLLM2) or (not folder.exists() and _looks_like_hub_name(name)):
        return
    check_folder(folder)


def resolve_model(name: str, *, seed: int = 0, cache_dir: Path | None = None) -> Path:
    """The folder of a model: `tiny`, `smollm2-135m`, a path, or `owner/name` on the hub.

    `seed` draws the weights of `tiny`.

    What must be made or fetched is, once, into the cache directory. Raises ConfigError, with one
    sentence, where that cannot be done or the folder is not a usable model.
    """
    root = cache_dir or default_cache_dir()
    if name == TINY:
        folder = root / "models" / f"tiny-{seed}-{_digest_tiny_sources()}"
        require("the tiny model", *TRAIN)
        return make_once(folder, partial(_make_tiny_model, seed), needs_bytes=20_000_000)
    if name == SMOLLM2:
        from agentrl.engine.local.models.smollm2 import make_smollm2

        require(f"the model {name}", *TRAIN, "gguf")
        return make_once(root / "models" / name, make_smollm2, needs_bytes=1_200_000_000)
    folder = _resolve_model_folder_path(name)
    if not folder.exists() and _looks_like_hub_name(name):
        folder = _download_from_hub(name)
    check_folder(folder)
    return folder.resolve()


def resolve_tokenizer(name: str, *, seed: int = 0, cache_dir: Path | None = None) -> Path:
    """As `resolve_model`, where nobody needs the weights: `tiny` is made without torch."""
    if name != TINY:
        return resolve_model(name, seed=seed, cache_dir=cache_dir)
    from agentrl.engine.local.models.tiny_tokenizer import make_tokenizer

    folder = (
        (cache_dir or default_cache_dir()) / "models" / f"tiny-tokenizer-{_digest_tiny_sources()}"
    )
    return make_once(folder, make_tokenizer, needs_bytes=1_000_000)


def check_folder(folder: Path) -> None:
    """Raise ConfigError if the folder is not a model with tokenizer, chat template and weights."""
    if not folder.is_dir():
        raise _make_model_is_no_folder_error(str(folder))
    _check_model_config_file(folder / "config.json")
    if not (folder / "tokenizer.json").is_file() and not (folder / "tokenizer.model").is_file():
        raise ConfigError(
            f"{folder} has no tokenizer.json; save the model's tokenizer into the same folder"
        )
    if not _has_chat_template(folder):
        raise ConfigError(
            f"{folder} has no chat template; put a chat_template.jinja into the folder or use the "
            "instruction-tuned version of the model"
        )
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"{folder} has an adapter_config.json, so its weights are a LoRA adapter of another "
            "model; merge it into that one, or remove the file"
        )
    for path in weight_files(folder):
        if path.suffix == ".safetensors":
            _check_safetensors_size(path)


def make_once(folder: Path, make: Callable[[Path], None], *, needs_bytes: int) -> Path:
    """Make a folder of the cache unless it is there; it appears complete or not at all."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    check_disk(folder.parent, needs_bytes)
    scratch = Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(scratch / folder.name)
        try:
            (scratch / folder.name).rename(folder)
        except OSError:
            # Another process was faster; what it made is the same.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def check_disk(folder: Path, needs_bytes: int) -> None:
    """Raise ConfigError if the folder's disk has less than `needs_bytes` free."""
    free = shutil.disk_usage(folder).free
    if free < needs_bytes:
        raise ConfigError(
            f"{folder} has {free / 1e6:,.0f} MB free, the model needs {needs_bytes / 1e6:,.0f} MB; "
            "free some space or set AGENTRL_CACHE to a folder on another disk"
        )


def _make_tiny_model(seed: int, folder: Path) -> None:
    from agentrl.engine.local.models.tiny import make_tiny

    make_tiny(folder, seed)


@cache
def _digest_tiny_sources() -> str:
    """A digest of what `tiny` is made by, so that another version does not take an old one."""
    here = Path(__file__).parent
    names = ("tiny.py", "tiny_tokenizer.py", "tiny_corpus.txt", "tiny_template.jinja")
    parts = [here / name for name in names]
    return hashlib.blake2b(b"".join(p.read_bytes() for p in parts), digest_size=6).hexdigest()


def _check_model_config_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(
            f"{path.parent} has no config.json; give the folder of a Hugging Face model"
        )
    content = read_json(path)
    if not isinstance(content, dict) or "model_type" not in content:
        raise ConfigError(f"{path} names no model_type; give the folder of a Hugging Face model")
    check_numbers(path, cast("object", content))


def _check_safetensors_size(path: Path) -> None:
    """Compare the file's header with its size; the format begins with the header's length."""
    length = size = 0
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, dict[str, list[int]]]
            header = json.loads(file.read(length)) if length < size else {}
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ConfigError(f"{path} is no safetensors file ({e}); download it again") from e
    if not ends or 8 + length + max(ends) != size:
        raise ConfigError(f"{path} is cut off or damaged ({size:,} bytes); download it again")


def _resolve_model_folder_path(name: str) -> Path:
    """The place that a name says; raises ConfigError for one that no folder can have."""
    try:
        folder = Path(name).expanduser()
        folder.exists()
    except (OSError, RuntimeError, ValueError) as e:  # too long, or another user's home
        raise _make_model_is_no_folder_error(name) from e
    return folder


def _make_model_is_no_folder_error(name: str) -> ConfigError:
    shown = name if len(name) <= 256 else f"{name[:60]}..."
    return ConfigError(
        f"model {shown!r} is no folder; give tiny, smollm2-135m, the folder of a Hugging "
        "Face model, or owner/name of one on the hub"
    )


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    try:
        content: object = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(content, dict):
        return False
    return bool(cast("dict[str, object]", content).get("chat_template"))


def _looks_like_hub_name(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 2 and all(part and part[0] not in ".~" for part in parts)


def _download_from_hub(name: str) -> Path:
    """Download a model; a short probe first, since the client takes long to give up by itself."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
    except LocalEntryNotFoundError:
        _check_hub_is_reachable(name)
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, OSError, ValueError) as e:
        reason = str(e).strip().splitlines()[-1]
        raise ConfigError(f"model {name!r} could not be downloaded: {reason}") from e


def _check_hub_is_reachable(name: str) -> None:
    from huggingface_hub import constants

    host = constants.ENDPOINT.split("://")[-1].split("/")[0]
    address, _, port = host.partition(":")
    try:
        socket.create_connection((address, int(port or 443)), timeout=_PROBE_TIMEOUT_S).close()
    except OSError as e:
        raise ConfigError(
            f"model {name!r} is no local folder and {host} cannot be reached ({e}); give the "
            "folder of a model, tiny or smollm2-135m"
        ) from e
