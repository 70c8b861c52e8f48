"""Tools: `@tool`, their schemas, how their calls run and what the model gets to see."""

from agentrl.aio import LoopWatch
from agentrl.boundary import user_code
from agentrl.tools.declare import ToolSpec, tool, tool_spec, tools_of, unique_tools
from agentrl.tools.runner import (
    SyncCaller,
    TextTokenizer,
    ToolHangs,
    ToolTimeout,
    result_text,
    run_isolated,
    run_tool,
    truncate_middle,
)
from agentrl.tools.threads import AbandonedThreads, EpisodeThread

__all__ = [
    "AbandonedThreads",
    "EpisodeThread",
    "LoopWatch",
    "SyncCaller",
    "TextTokenizer",
    "ToolHangs",
    "ToolSpec",
    "ToolTimeout",
    "result_text",
    "run_isolated",
    "run_tool",
    "tool",
    "tool_spec",
    "tools_of",
    "truncate_middle",
    "unique_tools",
    "user_code",
]
