"""The whole algorithm from public parts: rollout, advantages, update, publish.

Usage: python examples/flat_loop/loop.py [MODEL_FOLDER] [STEPS]
"""

import asyncio
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.envs import EnvServices, ToolEnv
from agentrl.envs.number_guess import NumberGuess
from agentrl.rollout import (
    Codec,
    Collector,
    CollectSettings,
    EnvSource,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    episode_metrics,
    gather_groups,
    make_batch,
    task_stream,
)
from agentrl.tokens import Tokenizer
from agentrl.trainer import TrainerConfig
from agentrl.trainer.algorithms.advantages.group_relative import grpo
from agentrl.trainer.algorithms.normalisations import token_mean
from agentrl.trainer.trainer import LocalTrainer

TASKS, GROUP_SIZE, SEED = 8, 4, 0


async def main(folder: Path, steps: int) -> None:
    """Train for some steps and print the reward of each."""
    codec = Codec(Tokenizer.load(folder))
    model = load_model(folder, dtype="float32")
    engine = LocalEngine(model, EngineConfig())
    trainer = LocalTrainer(model, TrainerConfig(lr=5e-4), total_steps=steps)
    services = EnvServices()
    limits = EpisodeLimits(max_new_tokens=16, max_context_tokens=512, wall_s=60.0, setup_s=10.0)
    settings = CollectSettings(
        limits=limits, temperature=1.0, concurrency=64, attempts=2, max_invalid_share=0.5
    )
    collector = Collector(engine=engine, codec=codec, settings=settings)

    def make_env() -> ToolEnv:
        return NumberGuess(tokenizer=codec.tokenizer, services=services)

    def job(index: int, step: int, place: int) -> GroupJob:
        key = EpisodeKey.first(run=SEED, step=step, place=place)
        task = NumberGuess.task_at(index, split="train", seed=SEED)
        return GroupJob(key=key, env="number_guess", make_env=make_env, task=task, split="train")

    stream = task_stream([EnvSource(1.0, None)], tasks_per_step=TASKS, seed=SEED)
    for step, refs in enumerate(islice(stream, steps), start=1):
        jobs = [job(ref.index, step, place) for place, ref in enumerate(refs)]
        played = await gather_groups(collector.collect(jobs, group_size=GROUP_SIZE))
        batch = make_batch(played.episodes, temperature=1.0)
        batch = replace(batch, advantages_N=grpo(batch), weights_N=token_mean(batch))
        await engine.pause()  # it samples with the parameters that change now
        stats = trainer.update(batch)
        if not stats.skipped:
            await engine.update_weights(trainer.weights(), step)
        await engine.resume()
        reward = episode_metrics(played)["reward"]
        print(f"step {step}  reward {reward:.3f}  verified {stats.verified_share:.0%}")
    await engine.aclose()
    services.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    model_folder = Path(given[0]) if given else resolve_model("tiny")
    asyncio.run(main(model_folder, int(given[1]) if len(given) > 1 else 2))
