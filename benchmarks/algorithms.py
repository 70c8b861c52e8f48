"""Estimators, losses, corrections, micro-batches beside verl's: equal values, CPU time of both.

    PYTHONPATH=benchmarks/.peers python benchmarks/algorithms.py

1,024 episodes of up to 8,192 tokens, a third of them the environment's; one thread, the median of
both in turns. Exits 1 where values differ or ours is too slow: ten times faster where verl loops in
Python (GAE, REINFORCE++, micro-batches), never slower elsewhere. Exits 1
too where the table of docs/algorithms.md lacks one.
"""

# pyright: basic, reportMissingImports=false, reportReturnType=false
# mypy: ignore-errors
# verl is not typed, and not there where types are checked.

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from agentrl.rollout import make_batch
from agentrl.trainer.algorithms.corrections import BUILT_IN as CORRECTIONS
from agentrl.trainer.algorithms.corrections import CheckedCorrection, correction_metrics
from agentrl.trainer.algorithms.estimators import BUILT_IN as ESTIMATORS
from agentrl.trainer.algorithms.losses import BUILT_IN as LOSSES
from agentrl.trainer.algorithms.normalisations import sequence_mean, token_mean
from agentrl.trainer.algorithms.trained_tokens import trained_tokens
from agentrl.trainer.packing import pack, plan, trained_rows
from agentrl.types import Batch

GROUP = 8
AT_LEAST = {"gae": 10.0, "reinforce_pp": 10.0, "micro-batches": 10.0}
"""How many times faster; 1 elsewhere."""


class Data:
    """The same step for both: padded matrices for verl, flat rows for us."""

    def __init__(self, episodes: int, length: int, *, observations: bool) -> None:
        rng = np.random.default_rng(0)
        self.lengths = rng.integers(length // 8, length + 1, episodes)
        inside = np.arange(length) < self.lengths[:, None]
        seen = inside & ((np.arange(length) // 256) % 3 == 2) & observations
        mask = inside & ~seen
        self.rewards = rng.random(episodes)
        token_rewards = np.zeros((episodes, length), np.float32)
        self.last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], 1)
        token_rewards[np.arange(episodes), self.last] = self.rewards
        self.until_last = torch.from_numpy(np.arange(length) <= self.last[:, None])
        values, old = rng.random((2, episodes, length), dtype=np.float32)
        new = old + 0.01 * rng.normal(size=old.shape).astype(np.float32)
        self.mask, self.token_rewards = (
            torch.from_numpy(mask).float(),
            torch.from_numpy(token_rewards),
        )
        self.values, self.old, self.new = map(torch.from_numpy, (values, -old, -new))
        self.advantages = (
            torch.from_numpy(rng.normal(size=old.shape).astype(np.float32)) * self.mask
        )
        self.index = np.array([str(i // GROUP) for i in range(episodes)], dtype=object)
        self.places = np.flatnonzero(inside)
        self.batch = self._batch(mask, values, -old)

    def flat(self, matrix: np.ndarray, dtype: type = np.float32) -> np.ndarray:
        """[N] A matrix as rows one after the other, each behind a prompt of one token."""
        rows = np.split(matrix.reshape(-1)[self.places], np.cumsum(self.lengths)[:-1])
        return np.concatenate([part for row in rows for part in ([0], row)]).astype(dtype)

    def _batch(self, mask: np.ndarray, values: np.ndarray, old: np.ndarray) -> Batch:
        mask_N = self.flat(mask, np.bool_)
        turn_N = self.flat(np.zeros_like(mask), np.int16)
        episodes = len(self.lengths)
        return replace(
            make_batch([], temperature=1.0),
            ids_N=np.random.default_rng(1).integers(0, 1000, len(mask_N)).astype(np.int32),
            mask_N=mask_N,
            turns_N=turn_N,
            versions_N=np.zeros(len(mask_N), np.int32),
            logprobs_N=np.where(mask_N, self.flat(old), 0),
            proximal_N=np.where(mask_N, self.flat(self.new.numpy()), 0),
            values_N=np.where(mask_N, self.flat(values), 0),
            advantages_N=np.where(mask_N, self.flat(self.advantages.numpy()), 0),
            offsets_R1=np.concatenate([[0], np.cumsum(self.lengths + 1)]),
            episode_R=np.arange(episodes, dtype=np.int32),
            episode_ids=tuple(map(str, range(episodes))),
            group_E=np.arange(episodes, dtype=np.int32) // GROUP,
            rewards_E=self.rewards,
            greedy_E=self.rewards[::-1].copy(),
            parts_E={"first": self.rewards, "second": self.rewards[::-1] ** 2},
            turn_rewards_U=self.rewards,
            turn_offsets_E1=np.arange(episodes + 1),
        )


def estimators(data: Data) -> dict[str, tuple[Callable, Callable]]:
    """Both sides of each estimator that verl has in the same form."""
    import verl.trainer.ppo.core_algos as theirs
    from verl.trainer.config.algorithm import AlgoConfig

    rewards, mask, index = data.token_rewards, data.mask, data.index
    config = AlgoConfig(gamma=1.0)
    one, decay = torch.tensor(1.0), torch.tensor(0.95)
    calls = {
        "grpo": lambda: theirs.compute_grpo_vectorized_outcome_advantage(rewards, mask, index),
        "dr_grpo": lambda: theirs.compute_grpo_vectorized_outcome_advantage(
            rewards, mask, index, norm_adv_by_std_in_grpo=False
        ),
        "rloo": lambda: theirs.compute_rloo_vectorized_outcome_advantage(rewards, mask, index),
        "reinforce_pp": lambda: theirs.compute_reinforce_plus_plus_outcome_advantage(
            rewards, mask, config=config
        ),
        "reinforce_pp_baseline": lambda: (
            theirs.compute_reinforce_plus_plus_baseline_outcome_advantage(rewards, mask, index)
        ),
        "remax": lambda: theirs.compute_remax_outcome_advantage(
            rewards, torch.from_numpy(data.batch.greedy_E).float(), mask
        ),
        "gdpo": lambda: theirs.compute_gdpo_outcome_advantage(
            rewards,
            mask,
            index,
            config={"gdpo_reward_keys": [*data.batch.parts_E]},
            non_tensor_batch=data.batch.parts_E,
            batch={"prompts": rewards[:, :0], "attention_mask": data.until_last},
        ),
        "opo": lambda: theirs.compute_opo_outcome_advantage(rewards.clone(), mask, index),
        "gae": lambda: theirs.compute_gae_advantage_return(rewards, data.values, mask, one, decay),
    }

    def ours(name: str) -> Callable:
        return lambda: ESTIMATORS[name](data.batch)

    return {name: (ours(name), lambda call=call: call()[0]) for name, call in calls.items()}


def losses(data: Data) -> dict[str, tuple[Callable, Callable]]:
    """Both sides of each loss, forward and back."""
    import verl.trainer.ppo.core_algos as theirs
    from verl.workers.config import FSDPActorConfig

    config = FSDPActorConfig(
        strategy="fsdp",
        rollout_n=GROUP,
        ppo_micro_batch_size_per_gpu=1,
        ppo_mini_batch_size=GROUP,
    )
    names = {"clip": "vanilla", "dual_clip": "vanilla", "gspo": "gspo", "cispo": "cispo"}
    names |= {"sapo": "sapo", "dppo": "dppo_tv"}
    source_K = np.flatnonzero(data.batch.mask_N)
    new_N = data.flat(data.new.numpy())
    # Ratios are off 1 by about 0.01, those of rows by 0.0005: some are outside.
    bounds = {name: {"low": 0.005, "high": 0.01} for name in ("clip", "dual_clip", "cispo")}
    bounds["dual_clip"]["most"] = 1.015
    bounds["gspo"] = {"low": 3e-4, "high": 4e-4}

    def ours(name: str) -> Callable:
        # verl's SAPO is the mean of the rows' means, whatever is asked for.
        normalise = sequence_mean if name == "sapo" else token_mean
        batch = replace(data.batch, weights_N=normalise(data.batch))

        def run() -> torch.Tensor:
            logprobs_K = torch.from_numpy(new_N[source_K]).requires_grad_()
            tokens = trained_tokens(batch, source_K, logprobs_K.detach())
            total, _ = LOSSES[name](logprobs_K, tokens, **bounds.get(name, {}))
            total.backward()
            return logprobs_K.grad

        return run

    def verl(name: str) -> Callable:
        function = theirs.get_policy_loss_fn(names[name])
        given = bounds.get(name, {"low": 0.2, "high": 0.2})
        settings = replace(
            config,
            clip_ratio_low=given["low"],
            clip_ratio_high=given["high"],
            clip_ratio_c=given.get("most", 3.0),
        )

        def run() -> torch.Tensor:
            logprobs = data.new.clone().requires_grad_()
            loss, _ = function(
                old_log_prob=data.old,
                log_prob=logprobs,
                advantages=data.advantages,
                response_mask=data.mask,
                loss_agg_mode="token-mean",
                config=settings,
            )
            loss.backward()
            return logprobs.grad

        return run

    return {name: (ours(name), verl(name)) for name in names}


def corrections(data: Data) -> dict[str, tuple[Callable, Callable]]:
    """Factors, or what is kept, with the statistics that go with them; bounds that cut some."""
    from verl.trainer.ppo import rollout_corr_helper as theirs

    log_ratio, mask = data.new - data.old, data.mask
    weigh = partial(theirs.compute_rollout_correction_weights, log_ratio, mask)
    reject = partial(theirs.compute_rollout_rejection_mask, log_ratio, mask)
    calls = {
        "tis": ({"cap": 1.005}, partial(weigh, "token", 1.005)),
        "icepop": ({"low": 0.99, "high": 1.01}, partial(weigh, "token", "0.99_1.01")),
        "sequence_tis": ({"cap": 1.1}, partial(weigh, "sequence", 1.1)),
        # Theirs are bounds of the engine's probability over the trainer's.
        "reject_k1": (
            {"low": 1 / 1.0004, "high": 1 / 0.9998},
            partial(reject, "seq_mean_k1", "0.9998_1.0004"),
        ),
        "reject_k3": ({"most": 5e-5}, partial(reject, "seq_mean_k3", 5e-5)),
    }

    def ours(name: str, options: dict[str, float]) -> Callable:
        def run() -> np.ndarray:
            after = CheckedCorrection(name, partial(CORRECTIONS[name], **options))(data.batch)
            correction_metrics(after)
            found_N = after.mask_N if after.factors_N is None else after.factors_N
            return found_N.astype(np.float32)

        return run

    return {
        name: (ours(name, options), lambda call=call: call()[0])
        for name, (options, call) in calls.items()
    }


def micro_batches(data: Data) -> tuple[Callable, Callable]:
    """Rows into micro-batches of at most two longest ones; tensors made on both sides."""
    from tensordict import TensorDict
    from verl.utils.seqlen_balancing import rearrange_micro_batches

    episodes, length = data.mask.shape
    inside = torch.arange(length) < torch.from_numpy(data.lengths)[:, None]
    ids = torch.randint(0, 1000, (episodes, length))
    fields = {"input_ids": ids, "attention_mask": inside.long(), "responses": ids[:, : length // 2]}
    padded = TensorDict(fields, batch_size=[episodes])

    def ours() -> None:
        for rows in plan(data.batch, trained_rows(data.batch), 2 * length, share=False):
            pack(data.batch, rows, share=False)

    return ours, lambda: rearrange_micro_batches(padded, max_token_len=2 * length)


def check_values(length: int) -> list[str]:
    """Where values differ, on a small step without observations (verl's scans stop at them)."""
    data, wrong = Data(64, length, observations=False), []
    inside = np.flatnonzero(data.mask.numpy().reshape(-1))
    trained = np.flatnonzero(data.batch.mask_N)
    for name, (ours, theirs) in (estimators(data) | corrections(data)).items():
        mine, other = ours()[trained], theirs().numpy().reshape(-1)[inside]
        if name == "grpo":  # theirs takes the sample's deviation, and adds 1e-6
            other = other * (GROUP / (GROUP - 1)) ** 0.5
        wrong += _compare(name, mine, other)
    for name, (ours, theirs) in losses(data).items():
        wrong += _compare(name, ours().numpy(), theirs().numpy().reshape(-1)[inside])
    return wrong


def _compare(name: str, mine: np.ndarray, other: np.ndarray) -> list[str]:
    off = float(np.abs(mine - other).max() / np.abs(other).max())
    print(f"  {name:21} largest difference {off:.1e} of the largest value")
    return [name] if off > 2e-4 else []


def measure(pair: tuple[Callable, Callable], rounds: int) -> tuple[list[float], list[float]]:
    """CPU milliseconds of both, in turns, after one round that does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for side, call in enumerate(pair):
            started = time.process_time()
            call()
            if turn:
                times[side].append((time.process_time() - started) * 1e3)
    return times


def main() -> int:
    """Print both tables; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description="Algorithms beside verl's.")
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("values, 64 episodes without observations")
    failed = [f"{name}: values differ" for name in check_values(min(512, options.length))]
    data = Data(options.episodes, options.length, observations=True)
    print(f"CPU ms, {options.episodes} x {options.length}, {data.batch.num_trained} trained tokens")
    pairs = estimators(data) | losses(data) | corrections(data)
    page = (Path(__file__).parents[1] / "docs" / "algorithms.md").read_text()
    table = page.partition("| ours | verl | theirs is |")[2].partition("\n\n")[0]
    failed += [f"{name} is not in the table" for name in pairs if f"| `{name}` |" not in table]
    pairs |= {"micro-batches": micro_batches(data)}
    for name, pair in pairs.items():
        mine, other = measure(pair, options.rounds)
        ratio = statistics.median(other) / statistics.median(mine)
        bar = AT_LEAST.get(name, 1)
        spread = f"{min(mine):.0f} to {max(mine):.0f}, verl {min(other):.0f} to {max(other):.0f}"
        print(f"  {name:21} {ratio:6.1f} times faster (bar {bar:g}); ours {spread}")
        if ratio < bar:
            failed.append(f"{name}: {ratio:.2f} times, bar {bar:g}")
    print("\n".join(failed) or "every bar is met")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
