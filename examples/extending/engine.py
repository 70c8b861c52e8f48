from agentrl.engine import Engine
from agentrl.engine.scripted import ScriptedEngine
from agentrl.orchestration.kinds import EngineKind, EngineSetup


class Expert(EngineKind):
    """The environment's expert in the model's place; new weights change nothing."""

    honours_seeds = True

    def start(self, setup: EngineSetup) -> Engine:
        """An engine for the first environment of the run."""
        env = setup.envs[0]
        assert env.expert is not None
        renderer = setup.codec.renderer(env.prototype.tool_schemas)
        return ScriptedEngine(
            env.expert,
            renderer,
            vocab_size=setup.codec.tokenizer.vocab_size,
            context_length=setup.context_length,
        )
