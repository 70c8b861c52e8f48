"""agentrl trains language-model agents by reinforcement learning in environments with tools."""

from gymnasium.envs.registration import register

register("agentrl/Calculator-v0", entry_point="agentrl.envs.calculator:Calculator")
register("agentrl/NumberGuess-v0", entry_point="agentrl.envs.number_guess:NumberGuess")
