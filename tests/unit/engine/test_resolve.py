import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.engine.local.models import resolve
from agentrl.engine.local.models.resolve import check_folder, check_model, make_once, resolve_model
from agentrl.errors import ConfigError

HEADER = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(8)


@pytest.mark.parametrize("content", [b"", WEIGHTS[:-1], WEIGHTS[:20], b"x" * 100])
def test_damaged_weights_are_refused(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match="download it again"):
        check_folder(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (made / "tokenizer.json").write_text("{}")
    (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (made / "model.safetensors").write_bytes(WEIGHTS)
    return made


def test_a_folder_is_a_model(folder: Path) -> None:
    assert resolve_model(str(folder)) == folder.resolve()
    (folder / "tokenizer_config.json").unlink()
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    check_folder(folder)


def test_another_recipe_of_tiny_is_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(seed: int, folder: Path) -> None:
        folder.mkdir()

    monkeypatch.setattr(resolve, "_make_tiny_model", make)
    first = resolve_model("tiny", cache_dir=tmp_path)
    assert resolve_model("tiny", cache_dir=tmp_path) == first
    monkeypatch.setattr(resolve, "_digest_tiny_sources", lambda: "other")
    assert resolve_model("tiny", cache_dir=tmp_path) != first


def gone(folder: Path) -> None:
    shutil.rmtree(folder)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def containing(name: str, text: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_text(text)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (gone, "is no folder; give tiny, smollm2-135m"),
        (without("config.json"), "has no config.json"),
        (containing("config.json", "{"), "cannot be read as JSON"),
        (containing("config.json", "[]"), "names no model_type"),
        (without("tokenizer.json"), "has no tokenizer.json"),
        (without("tokenizer_config.json"), "has no chat template"),
        (containing("tokenizer_config.json", "{}"), "has no chat template"),
        (without("model.safetensors"), "has no weights"),
    ],
)
def test_what_is_wrong_with_a_folder(
    folder: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(folder)
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_model(str(folder))
    assert "\n" not in str(caught.value)


def test_a_hub_name_without_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(
        ConfigError, match=r"'owner/none' is no local folder and .* cannot be reach"
    ):
        resolve_model("owner/none")


def test_a_cache_folder_is_made_once_and_whole(tmp_path: Path) -> None:
    calls: list[Path] = []

    def make(folder: Path) -> None:
        calls.append(folder)
        folder.mkdir()
        (folder / "a").write_text("a")
        if len(calls) == 1:
            raise RuntimeError("half way")

    target = tmp_path / "cache" / "model"
    with pytest.raises(RuntimeError, match="half way"):
        make_once(target, make, needs_bytes=1)
    assert list(target.parent.iterdir()) == []
    assert make_once(target, make, needs_bytes=1) == target
    assert make_once(target, make, needs_bytes=1) == target
    assert (len(calls), [p.name for p in target.parent.iterdir()]) == (2, ["model"])


def test_a_full_disk_is_said_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MB free, the model needs 1,000,000,000 MB"):
        make_once(tmp_path / "m", Path.mkdir, needs_bytes=10**15)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("AGENTRL_CACHE", raising=False)
    assert resolve.default_cache_dir() == Path("/x/agentrl")
    monkeypatch.setenv("AGENTRL_CACHE", "/y")
    assert resolve.default_cache_dir() == Path("/y")


def test_the_checks_need_no_torch() -> None:
    code = (
        "import sys, agentrl.engine.config, agentrl.engine.local.models.resolve;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["a" * 5000, "~nobody-of-that-name", "a\0b"])
def test_a_name_that_no_folder_can_have(name: str) -> None:
    for locate in (check_model, resolve_model):
        with pytest.raises(ConfigError, match="is no folder; give tiny") as caught:
            locate(name)
        assert len(str(caught.value)) < 300
