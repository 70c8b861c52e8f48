"""A call is found whatever stands before it in its list."""

import pytest

from agentrl.tokens.formats import FORMATS
from agentrl.types import CallError, ToolSchema

TOOL = ToolSchema(name="f", description="", parameters={"properties": {"i": {"type": "integer"}}})
JSON = '{"name": "f", "parameters": {"i": 2}}'


@pytest.mark.parametrize("first", ["[f(i=1)]", "(f(i=1))", "lambda: 0", "None", "[1, 2]", "(1,)"])
def test_a_pythonic_call_is_found_behind(first: str) -> None:
    error, call = FORMATS["pythonic"](None).parse_text(f"[{first}, f(i=2)]", [TOOL]).calls
    assert isinstance(error, CallError)
    assert call.name == "f"


@pytest.mark.parametrize("first", ["3", "[]", "null", '"x"', "[1, 2]", "{}"])
def test_a_json_call_is_found_behind(first: str) -> None:
    error, call = FORMATS["llama3_json"](None).parse_text(f"[{first}, {JSON}]", [TOOL]).calls
    assert isinstance(error, CallError)
    assert call.name == "f"
