import json
import os
import socket
import threading
from pathlib import Path

import pytest

from agentrl.cli.dispatch import main
from agentrl.cli.doctor import examine, render
from agentrl.sandboxes.probe import probe_bwrap, probe_docker, probe_sandboxes


def test_doctor_shows_what_there_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.cli.doctor._torch", lambda: {"devices": {"cpu": 1}, "threads": 2})
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["versions", "machine", "torch", "engines", "sandboxes", "places"]
    assert report["engines"]["scripted"]["works"] is True
    assert report["versions"]["numpy"]
    assert set(report["sandboxes"]) == {"bwrap", "docker"}
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "  devices       cpu (1)\n" in text
    assert "  scripted      works: ready\n" in text


def test_a_broken_torch_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.cli.doctor._TORCH", "import no_such_torch")
    report = examine()
    assert report["torch"] == {"error": "ModuleNotFoundError: No module named 'no_such_torch'"}
    assert "No module named" in render(report)


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


def test_docker_is_asked_for_its_version(tmp_path: Path) -> None:
    path = os.path.relpath(tmp_path / "d.sock")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    body = b'{"Version": "20.10"}'

    def answer() -> None:
        server.accept()[0].close()
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)

    thread = threading.Thread(target=answer)
    thread.start()
    probe = probe_docker({"DOCKER_HOST": f"unix://{path}"})
    thread.join()
    server.close()
    assert probe.works
    assert probe.detail == f"20.10 at unix://{path}"


@pytest.mark.parametrize("host", ["unix:///nowhere.sock", "ssh://x", "tcp://127.0.0.1:1"])
def test_docker_that_does_not_answer_is_not_there(host: str) -> None:
    assert not probe_docker({"DOCKER_HOST": host}).works


def test_every_sandbox_is_probed() -> None:
    probes = probe_sandboxes({"DOCKER_HOST": "unix:///nowhere.sock"})
    assert [probe.name for probe in probes] == ["bwrap", "docker"]
