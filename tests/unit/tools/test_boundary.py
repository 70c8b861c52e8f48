import asyncio
import signal

import pytest

from agentrl.errors import EnvironmentFault, SandboxError, ToolError
from agentrl.terminated import Terminated
from agentrl.tools import user_code


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(1), StopIteration()])
def test_what_user_code_raises_becomes_a_fault_with_its_cause(error: BaseException) -> None:
    message = f"setup raised {type(error).__name__}"
    with pytest.raises(EnvironmentFault, match=message) as caught, user_code("setup"):
        raise error
    assert caught.value.__cause__ is error


def test_errors_of_agentrl_keep_their_meaning() -> None:
    with pytest.raises(SandboxError), user_code("setup"):
        raise SandboxError("gone")


def test_a_tool_error_is_for_the_model_in_tools_only() -> None:
    with pytest.raises(ToolError), user_code("tool t", shows_tool_errors=True):
        raise ToolError("no")
    with pytest.raises(EnvironmentFault, match="reply raised ToolError: no"), user_code("reply"):
        raise ToolError("no")


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), Terminated(signal.SIGTERM)])
def test_what_ends_the_program_goes_on(ending: BaseException) -> None:
    with pytest.raises(type(ending)), user_code("setup"):
        raise ending


async def test_a_cancelled_task_ends_and_a_stray_cancellation_is_a_fault() -> None:
    async def hook() -> None:
        with user_code("setup"):
            await asyncio.sleep(60)

    task = asyncio.create_task(hook())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(EnvironmentFault, match="setup raised CancelledError"), user_code("setup"):
        raise asyncio.CancelledError


def test_an_exception_that_cannot_say_anything_keeps_its_name() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    with pytest.raises(EnvironmentFault, match="score raised Mute: "), user_code("score"):
        raise Mute
