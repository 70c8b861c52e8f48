"""Messages and settings that the tests of rendering share."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, settings

from agentrl.tokens import Tokenizer
from agentrl.types import Message, ToolCall

MakeFolder = Callable[..., Path]
same_fixture = settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


load = cache(Tokenizer.load)


def user(content: str) -> Message:
    return Message(role="user", content=content)


def result(content: str, index: int = 0) -> Message:
    return Message(role="tool", content=content, name="add", tool_call_id=f"call_{index}")


def of_assistant(content: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=content, tool_calls=calls)


CHATML_LIKE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{{ '<|im_end|>\n' if m.role == 'assistant' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
