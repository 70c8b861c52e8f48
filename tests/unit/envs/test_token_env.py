from agentrl.envs import TokenEnv
from agentrl.envs.calculator import Calculator
from agentrl.envs.number_guess import NumberGuess
from agentrl.tokens import Renderer, Tokenizer
from agentrl.types import AssistantTurn, Task, ToolCall


async def test_an_episode_is_played_in_ids(tokenizer: Tokenizer) -> None:
    env = Calculator()
    tokens = TokenEnv(env, tokenizer)
    renderer = Renderer(tokenizer, env.tool_schemas)
    task = Task(prompt="What is 2 + 3?", answer=5, data={"expression": "2 + 3"})
    observation, _ = await tokens.areset(seed=0, options={"task": task})
    assert tokenizer.decode(observation).endswith(
        "What is 2 + 3?<|im_end|>\n<|im_start|>assistant\n"
    )
    call = ToolCall(name="calculator", arguments={"expression": "2 + 3"}, id="call_0")
    action = renderer.assistant(AssistantTurn(calls=(call,)))
    observation, reward, terminated, truncated, _ = await tokens.astep(action)
    assert "<tool_response>\n5\n</tool_response>" in tokenizer.decode(observation)
    assert (reward, terminated, truncated) == (0.0, False, False)
    answer = renderer.assistant(AssistantTurn(text="5"))
    observation, reward, terminated, truncated, _ = await tokens.astep(answer)
    assert (observation, reward, terminated, truncated) == ((), 1.0, True, False)
    await tokens.aclose()


def test_an_action_may_lack_its_stop_token(tokenizer: Tokenizer) -> None:
    tokens = TokenEnv(NumberGuess(), tokenizer)
    task = Task(prompt="?", answer=140, data={"low": 123, "high": 154})
    tokens.reset(seed=0, options={"task": task})
    _, reward, terminated, _, _ = tokens.step(tokenizer.encode("140", specials=False))
    assert (reward, terminated) == (1.0, True)
    tokens.close()
    tokens.close()
