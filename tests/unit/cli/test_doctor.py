import importlib.util
import json
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import cast

import pytest

from agentrl.cli.dispatch import main
from agentrl.cli.doctor import examine, render
from agentrl.sandboxes import BACKENDS, run_sync, survey
from agentrl.sandboxes.probe import probe_bwrap


def test_doctor_shows_what_there_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "agentrl.cli.doctor._probe_torch_in_child", lambda: {"devices": {"cpu": 1}, "threads": 2}
    )
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["versions", "machine", "torch", "engines", "sandboxes", "places"]
    assert report["engines"]["scripted"]["works"] is True
    assert report["versions"]["numpy"]
    assert set(report["sandboxes"]) == {"auto", "bwrap", "docker"}
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "  devices       cpu (1)\n" in text
    assert "  scripted      works: ready\n" in text


def test_a_broken_torch_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.cli.doctor._TORCH", "import no_such_torch")
    report = examine()
    assert report["torch"] == {"error": "ModuleNotFoundError: No module named 'no_such_torch'"}
    assert "No module named" in render(report)


def test_a_missing_torch_is_shown_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def find_other(name: str) -> ModuleSpec | None:
        return None if name == "torch" else found(name)

    monkeypatch.setattr("importlib.util.find_spec", find_other)
    assert examine()["torch"] == {"error": "not installed: pip install 'agentrl[train]'"}


def _program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_bwrap_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = _program(tmp_path / "good", 'test "$1" = --unshare-all')
    assert probe_bwrap(good).works
    bad = probe_bwrap(_program(tmp_path / "bad", "echo creating namespaces: denied >&2; exit 1"))
    assert not bad.works
    assert bad.detail.endswith("bad: creating namespaces: denied")
    assert not probe_bwrap(str(tmp_path / "none")).works
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("agentrl.sandboxes.probe.find_bwrap", lambda: None)
    assert probe_bwrap().detail.startswith("no bwrap on PATH")


def test_each_sandbox_says_what_it_holds_or_why_it_does_not_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    monkeypatch.setenv("PATH", "/no/such/folder")

    def found_bwrap(image: str) -> str:
        return "bwrap"

    monkeypatch.setattr("agentrl.sandboxes.choose._choose_working_backend", found_bwrap)
    monkeypatch.setitem(
        cast("dict[str, str]", BACKENDS), "bwrap", "agentrl.sandboxes.local:UnsafeLocalSandbox"
    )
    found = {probe.name: (probe.works, probe.detail) for probe in run_sync(survey())}
    assert found["auto"] == (True, "bwrap")
    assert found["bwrap"] == (True, "mounts, sessions")
    assert not found["docker"][0]
    assert found["docker"][1].startswith("no Docker engine answers at unix:///nowhere.sock")
