"""The contract that is published in SGLang's wheel: what we send fits it, and what we answer."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from agentrl.engine.servers.client import new_rid
from agentrl.engine.sglang.client import request_body
from agentrl.types import Sampling
from tests.unit.engine.test_sglang_answer import answer

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

BODY = request_body([5, 6, 7], Sampling(max_new_tokens=6, stop_ids=frozenset({0, 2})), new_rid())
CHECK = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("api_types", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["api_types"] = module
spec.loader.exec_module(module)
try:
    getattr(module, sys.argv[2]).from_json_value(json.load(sys.stdin))
except module.JsonContractError as error:
    print(error)
"""
Fault = Callable[[str, bytes], str]


@pytest.fixture(scope="module")
def fault(sglang_folder: Path) -> Fault:
    """What is wrong with a JSON value by the published type of a name; empty if nothing is."""
    (types,) = sglang_folder.glob("lib/python*/site-packages/sglang/api/v1/api_types.py")

    def check(name: str, value: bytes) -> str:
        return subprocess.run(
            [sglang_folder / "bin" / "python", "-c", CHECK, types, name],
            input=value,
            stdout=subprocess.PIPE,
            timeout=60,
            check=True,
        ).stdout.decode()

    return check


def test_what_is_sent_and_was_recorded_fits(fault: Fault) -> None:
    assert fault("GenerateRequest", BODY) == ""
    assert fault("GenerateResponse", answer()) == ""
    assert "unknown field `max_tokens`" in fault(
        "GenerateRequest", BODY.replace(b"max_new_tokens", b"max_tokens")
    )
    assert fault("AbortRequest", json.dumps({"rid": new_rid(), "abort_all": False}).encode()) == ""


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("GenerateResponse", "/generate"),
        ("GetModelInfoResponse", "/model_info"),
        ("GetServerInfoResponse", "/server_info"),
    ],
)
def test_what_our_own_server_answers_fits(
    fault: Fault, local_url: str, name: str, path: str
) -> None:
    head = {"Content-Type": "application/json"}
    method, body = ("POST", BODY) if path == "/generate" else ("GET", b"")
    said = httpx.request(method, local_url + path, content=body, headers=head, timeout=60)
    assert said.status_code == 200
    assert fault(name, said.content) == ""
