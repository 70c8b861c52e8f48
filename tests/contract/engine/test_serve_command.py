"""`agentrl engine serve local` as a command: how it ends, and what it refuses."""

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.cli.dispatch import main

pytestmark = pytest.mark.timeout(120)


def test_on_sigterm_requests_return_what_they_have(tiny_folder: Path) -> None:
    command = [sys.executable, "-m", "agentrl", "engine", "serve", "local"]
    process = subprocess.Popen(
        [*command, "--model", str(tiny_folder), "--engine.threads", "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = process.stdout.readline().split("served at ")[1].split(";")[0]
    found: list[dict[str, Any]] = []

    def ask() -> None:
        sampling = {"max_new_tokens": 2000, "ignore_eos": True}
        body = {"input_ids": [5, 6], "sampling_params": sampling}
        found.append(httpx.post(f"{url}/generate", json=body, timeout=60).json())

    asking = threading.Thread(target=ask)
    asking.start()
    end = time.monotonic() + 30
    while httpx.get(f"{url}/v1/loads").json()["loads"][0]["num_running_reqs"] == 0:
        assert time.monotonic() < end
    short = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    httpx.post(f"{url}/generate", json=short, timeout=60)  # beside it the other gets some, too
    process.send_signal(signal.SIGTERM)
    asking.join(30)
    assert found[0]["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(found[0]["output_ids"]) < 2000
    assert process.communicate(timeout=30)[0] == "stopped\n"
    assert process.returncode == 0


def test_bad_input_is_said_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["engine", "serve", "local", "--port", port]) == 2
    assert main(["engine", "serve", "local", "--model", "/bogus"]) == 2
    assert main(["engine", "serve", "lokal"]) == 2
    assert main(["engine", "install", "local"]) == 2
    assert main(["engine", "serve", "local", "--host", "0.0.0.0"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 5
    for line, part in zip(
        said,
        (
            f"port {port} of 127.0.0.1 cannot be used",
            "no folder",
            "be served",
            "be installed",
            "set AGENTRL_SGLANG_KEY",
        ),
        strict=True,
    ):
        assert part in line
