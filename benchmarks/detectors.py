"""What SGLang's detectors of tool calls find; runs in SGLang's own environment, not in ours.

    PYTHON_OF_SGLANG benchmarks/detectors.py < cases.json

Reads `{"tools": {NAME: [tool, ...]}, "cases": [[DETECTOR, TEXT, NAME of tools], ...]}` and writes
what was found in each case: a list of `[tool, arguments]`, or the name of what was raised.
"""

import json
import logging
import sys
from contextlib import suppress
from typing import Any

with suppress(ImportError):  # on a CPU, the stand-in that torchvision needs
    import torchvision_ops  # noqa: F401

from sglang.srt.entrypoints.openai.protocol import Tool
from sglang.srt.function_call.function_call_parser import FunctionCallParser


def found(detector: str, text: str, tools: list[Any]) -> list[Any] | str:
    """The calls in a text."""
    try:
        result = FunctionCallParser.ToolCallParserEnum[detector]().detect_and_parse(text, tools)
        return [[call.name, json.loads(call.parameters or "{}")] for call in result.calls]
    except Exception as error:  # whatever a detector raises is a result here
        return type(error).__name__


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asked = json.load(sys.stdin)
    tools = {name: [Tool(**tool) for tool in some] for name, some in asked["tools"].items()}
    answers = [found(detector, text, tools[name]) for detector, text, name in asked["cases"]]
    json.dump(answers, sys.stdout)
