from agentrl.testing import EchoAgent, NullAgent, RandomAgent, ScriptedAgent
from agentrl.types import AssistantTurn, EpisodeView, Message, Task, ToolCall, ToolSchema

VIEW = EpisodeView(task=Task(prompt="p"), messages=(Message(role="user", content="p"),))
LATER = EpisodeView(
    task=Task(prompt="p"), messages=(*VIEW.messages, Message(role="assistant", content="a"))
)
TOOL = ToolSchema(
    name="t",
    description="",
    parameters={
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "array", "items": {"enum": ["x", "y"]}},
            "c": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "d": {"type": "number"},
            "e": {"type": "boolean"},
            "f": {"type": "object"},
        },
    },
)


def test_null_and_echo() -> None:
    assert NullAgent().act(VIEW) == AssistantTurn()
    assert EchoAgent().act(VIEW) == AssistantTurn(text="p")


def test_scripted_plays_its_turns_in_order_then_nothing() -> None:
    agent = ScriptedAgent([AssistantTurn(text="1")])
    assert agent.act(VIEW) == AssistantTurn(text="1")
    assert agent.act(LATER) == AssistantTurn()


def test_random_follows_from_seed_and_view_and_keeps_to_the_schema() -> None:
    assert RandomAgent(1, [TOOL]).act(VIEW) == RandomAgent(1, [TOOL]).act(VIEW)
    turns = [RandomAgent(seed, [TOOL]).act(VIEW) for seed in range(40)]
    arguments = [c.arguments for turn in turns for c in turn.calls if isinstance(c, ToolCall)]
    assert 10 < len(arguments) < 40
    for given in arguments:
        assert isinstance(given["a"], int)
        assert given["c"] is None or isinstance(given["c"], str)
        assert isinstance(given["b"], list)
        assert set(given["b"]) <= {"x", "y"}
