"""Trained tokens per CPU second and peak memory of one update, beside plain PyTorch and TRL.

    python benchmarks/train_step.py [--repeats 5] [--trl-python PATH] [--model FOLDER]

Sixteen episodes of 1 to 4 turns: prompts of 226 tokens that eight episodes share, turns of 48
tokens, results of 25. Each way computes the loss and all gradients of the same rows with the same
random weights in float32 on one thread; no optimizer. Each runs in a process of its own, in turns.

    padded        micro-batches of 4, padded, logits at every completion position
    unpadded      one row at a time, logits at every completion position
    masked        one row at a time, logits at trained tokens only
    ours          packed micro-batches of at least 4 rows
    ours, shared  the same, and what rows begin with alike is computed once
    trl           GRPOTrainer of TRL 1.16.0, micro-batches of 4 (its fused head falls back to slow
                  code on a CPU: this says nothing about GPUs)
    floor         the matrix products of `masked`, and nothing else

Exits with 1 unless ours takes at most as long as `masked`, and unless sharing saves at least
four fifths of its share of the matrix products, measured against ours without it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# (torch and transformers are typed in part, TRL is in another environment)

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

PROMPT, TURN, RESULT = 226, 48, 25
EPISODES, GROUP, TURNS, MICRO = 16, 8, 4, 4
TOKEN_BUDGET = 2200
OURS = ("ours", "ours, shared")
WAYS = ("padded", "unpadded", "masked", *OURS, "floor")


@dataclass(frozen=True)
class Row:
    """One training sequence."""

    ids: Tensor
    mask: Tensor
    """Of the completion: true where the policy sampled."""
    advantage: float


class Job:
    """The rows and the model, made anew in each process and everywhere the same."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model: Any = _model(folder)
        self.rows = _rows(self.model.config.vocab_size)
        self.num_trained = sum(int(row.mask.sum()) for row in self.rows)
        self.head: Tensor = self.model.get_output_embeddings().weight

    @property
    def micros(self) -> list[list[Row]]:
        """Four rows each."""
        return [self.rows[i : i + MICRO] for i in range(0, EPISODES, MICRO)]

    def hidden(self, row: Row) -> Tensor:
        """The last hidden states that predict the completion, of one row."""
        output: Tensor = self.model.base_model(input_ids=row.ids[None]).last_hidden_state
        return output[0, PROMPT - 1 : -1]

    def logprobs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Of the targets."""
        logits = torch.log_softmax(hidden @ self.head.T, -1)
        return logits.gather(-1, targets[..., None])[..., 0]

    def backward(self, logprobs: Tensor, advantages: Tensor | float) -> None:
        """Of the policy loss at ratio 1."""
        ratio = torch.exp(logprobs - logprobs.detach())
        torch.autograd.backward(-(ratio * advantages).sum() / self.num_trained)

    def padded(self) -> None:
        """Micro-batches of 4, logits at every completion position."""
        for rows in self.micros:
            ids, attended, mask = _padded(rows)
            hidden = self.model.base_model(input_ids=ids, attention_mask=attended)
            logprobs = self.logprobs(hidden.last_hidden_state[:, PROMPT - 1 : -1], ids[:, PROMPT:])
            self.backward(logprobs, mask * torch.tensor([[row.advantage] for row in rows]))

    def unpadded(self) -> None:
        """One row at a time, logits at every completion position."""
        for row in self.rows:
            logprobs = self.logprobs(self.hidden(row), row.ids[PROMPT:])
            self.backward(logprobs[row.mask], row.advantage)

    def masked(self) -> None:
        """One row at a time, logits at trained tokens only."""
        for row in self.rows:
            hidden, targets = self.hidden(row)[row.mask], row.ids[PROMPT:][row.mask]
            self.backward(self.logprobs(hidden, targets), row.advantage)

    def ours(self, share: bool) -> None:
        """What `Trainer.update` does between the records' check and the optimizer."""
        from agentrl.trainer import TrainerConfig
        from agentrl.trainer.algorithms.losses import make_loss
        from agentrl.trainer.logprobs import policy_scores
        from agentrl.trainer.objective import PolicyObjective
        from agentrl.trainer.packing import pack, plan, trained_rows

        config = TrainerConfig()
        objective = PolicyObjective(self.batch, make_loss(config), config)
        for micro in plan(self.batch, trained_rows(self.batch), TOKEN_BUDGET, share=share):
            if len(micro) < MICRO:
                raise SystemExit(f"a micro-batch has {len(micro)} rows, expected {MICRO} or more")
            packed = pack(self.batch, micro, share=share)
            scores = policy_scores(self.model, packed, self.batch.temperature)
            torch.autograd.backward(objective.loss(packed, scores))

    @cached_property
    def batch(self) -> Any:
        """The rows as the trainer gets them, with the model's own logprobs."""
        from agentrl.types import Batch

        lengths = [len(row.ids) for row in self.rows]
        masks = [np.concatenate([np.zeros(PROMPT, bool), row.mask.numpy()]) for row in self.rows]
        ids_N, mask_N = torch.cat([row.ids for row in self.rows]).numpy(), np.concatenate(masks)
        advantages_N = np.repeat([row.advantage for row in self.rows], lengths) * mask_N
        logprobs_N = np.zeros(len(ids_N), np.float32)
        with torch.no_grad():
            logprobs_N[mask_N] = torch.cat(
                [self.logprobs(self.hidden(row), row.ids[PROMPT:])[row.mask] for row in self.rows]
            )
        return Batch(
            ids_N=ids_N.astype(np.int32),
            mask_N=mask_N,
            logprobs_N=logprobs_N,
            sources_N=np.zeros(len(ids_N), np.int8),
            turns_N=np.zeros(len(ids_N), np.int16),
            versions_N=np.zeros(len(ids_N), np.int32),
            marks_N=np.zeros(len(ids_N), np.uint32),
            offsets_R1=np.cumsum([0, *lengths]),
            episode_R=np.arange(EPISODES, dtype=np.int32),
            digests_R=(b"",) * EPISODES,
            appends_A=np.array(lengths, np.int32),
            append_offsets_R1=np.arange(EPISODES + 1),
            episode_ids=tuple(map(str, range(EPISODES))),
            group_E=np.arange(EPISODES, dtype=np.int32) // GROUP,
            rewards_E=np.zeros(EPISODES),
            temperature=1.0,
            advantages_N=advantages_N.astype(np.float32),
            weights_N=mask_N.astype(np.float32) / np.float32(self.num_trained),
        )

    @cached_property
    def products(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Weight, input and gradient of each linear layer, of one row of the middle length."""
        made: list[tuple[Tensor, Tensor, Tensor]] = []
        num, trained = sum(len(r.ids) for r in self.rows) // EPISODES, self.num_trained // EPISODES
        for module in self.model.modules():
            if isinstance(module, nn.Linear):
                weight = module.weight.detach()
                tokens = trained if module is self.model.get_output_embeddings() else num
                given, gradient = (torch.randn(tokens, n) for n in reversed(weight.shape))
                made.append((weight, given, gradient))
        return made

    def floor(self) -> None:
        """The matrix products of forward and backward."""
        for _ in self.rows:
            for weight, given, gradient in self.products:
                _ = given @ weight.T, gradient @ weight, gradient.T @ given

    def trl(self) -> Callable[[], None]:
        """TRL's own loss on padded micro-batches."""
        # Of another environment: nothing of them is known here.
        datasets, tokenizers, transformers, trl = (
            cast(Any, import_module(name))
            for name in ("datasets", "tokenizers", "transformers", "trl")
        )
        words = tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a")
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer(words),
            pad_token="a",
            eos_token="b",
        )
        config = trl.GRPOConfig(
            output_dir="/tmp/trl-train-step",
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=MICRO,
            num_generations=MICRO,
            gradient_checkpointing=False,
            beta=0.0,
        )
        trainer = trl.GRPOTrainer(
            model=self.model,
            args=config,
            processing_class=tokenizer,
            train_dataset=datasets.Dataset.from_list([{"prompt": "a"}]),
            reward_funcs=[_no_reward],
        )
        trainer.current_gradient_accumulation_steps = 1

        def run() -> None:
            for rows in self.micros:
                ids, attended, mask = _padded(rows)
                inputs = {
                    "prompt_ids": ids[:, :PROMPT],
                    "prompt_mask": attended[:, :PROMPT],
                    "completion_ids": ids[:, PROMPT:],
                    "completion_mask": attended[:, PROMPT:],
                    "tool_mask": mask.long(),
                    "advantages": torch.tensor([row.advantage for row in rows]),
                    "num_items_in_batch": torch.tensor(self.num_trained),
                }
                torch.autograd.backward(trainer.compute_loss(self.model, inputs))

        return run

    def way(self, name: str) -> Callable[[], None]:
        """What one repetition runs; the rows as the trainer gets them are made before."""
        if name in OURS:
            _ = self.batch
            return lambda: self.ours(share=name != "ours")
        if name == "floor":
            _ = self.products
        found: Callable[[], None] = self.trl() if name == "trl" else getattr(self, name)
        return found


def _no_reward(completions: list[object], **_: object) -> list[float]:
    return [0.0] * len(completions)


def _model(folder: str) -> Any:
    if folder:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = Qwen2Config(
        vocab_size=49152,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config)


def _rows(vocab: int) -> list[Row]:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1000, min(vocab, 40000), PROMPT) for _ in range(EPISODES // GROUP)]
    rows: list[Row] = []
    for index in range(EPISODES):
        num = 1 + index % TURNS
        mask = np.concatenate([np.repeat([True, False], [TURN, RESULT])] * num)[:-RESULT]
        ids = np.concatenate(
            [prompts[index // GROUP], rng.integers(1000, min(vocab, 40000), len(mask))]
        )
        rows.append(Row(torch.from_numpy(ids), torch.from_numpy(mask), float(rng.normal())))
    return rows


def _padded(rows: list[Row]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, what is attended to, and the mask of the completions, padded on the right."""
    longest = max(len(row.ids) for row in rows)
    missing = [longest - len(row.ids) for row in rows]
    ids = [functional.pad(r.ids, (0, n), value=2) for r, n in zip(rows, missing, strict=True)]
    attended = [functional.pad(torch.ones_like(r.ids), (0, longest - len(r.ids))) for r in rows]
    masks = [functional.pad(r.mask, (0, n)) for r, n in zip(rows, missing, strict=True)]
    return torch.stack(ids), torch.stack(attended), torch.stack(masks).float()


def work(name: str, folder: str) -> None:
    """A process that runs one repetition for each line that it reads."""
    job = Job(folder)
    run = job.way(name)
    gc.collect()
    before = _peak_bytes(reset=True)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        job.model.zero_grad(set_to_none=True)
        started = time.process_time()
        run()
        seconds = time.process_time() - started
        norm = 0.0 if job.head.grad is None else float(job.head.grad.norm())
        answer = {"seconds": seconds, "norm": norm, "bytes": _peak_bytes() - before}
        print(json.dumps(answer), flush=True)


def _peak_bytes(*, reset: bool = False) -> int:
    """The most memory that this process has had; after `reset`, from now on."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    found = [line for line in status.splitlines() if line.startswith("VmHWM")]
    if not found:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(found[0].split()[1]) * 1024


class Worker:
    """The process of one way."""

    def __init__(self, name: str, python: str, folder: str) -> None:
        command = [python, __file__, "--worker", name, "--model", folder]
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answers: list[dict[str, float]] = []

    def read(self) -> dict[str, float]:
        """The next answer; other lines that libraries print are passed over."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, float] = json.loads(line)
                return answer
        raise SystemExit(f"the process of {self.name} ended with {self.process.wait()}")

    def repeat(self, *, warm: bool) -> None:
        """Run it once more; a warm-up does not count."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self.read()
        if not warm:
            self.answers.append(answer)

    @property
    def seconds(self) -> list[float]:
        """CPU time of each repetition."""
        return [answer["seconds"] for answer in self.answers]


def _shares(job: Job) -> tuple[float, float]:
    """Of all tokens those that sharing leaves out, and their share of the matrix products."""
    from agentrl.trainer.packing import pack, plan, trained_rows

    tokens = [
        sum(
            pack(job.batch, micro, share=share).tree.num_tokens
            for micro in plan(job.batch, trained_rows(job.batch), TOKEN_BUDGET, share=share)
        )
        for share in (False, True)
    ]
    saved = 1 - tokens[1] / tokens[0]
    linear = sum(m.weight.numel() for m in job.model.modules() if isinstance(m, nn.Linear))
    body = (linear - job.head.numel()) * tokens[0]
    return saved, saved * body / (body + job.head.numel() * job.num_trained)


def main() -> int:
    """Run the ways in turns and print a line for each."""
    parser = argparse.ArgumentParser(description="One update beside plain PyTorch and TRL.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--trl-python", default="", help="of an environment with trl==1.16.0")
    parser.add_argument("--model", default="", help="a model's folder; default: 16 M, random")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.model)
        return 0
    workers = [Worker(name, sys.executable, options.model) for name in WAYS]
    if options.trl_python:
        workers.append(Worker("trl", options.trl_python, options.model))
    else:
        print("trl: skipped, since --trl-python does not name an environment that has it")
    for worker in workers:
        worker.read()
    for repeat in range(options.repeats + 1):
        for worker in workers:
            worker.repeat(warm=repeat == 0)
    for worker in workers:
        worker.process.kill()
        worker.process.wait()
    return _report(workers, Job(options.model))


def _report(workers: list[Worker], job: Job) -> int:
    by_name = {worker.name: worker for worker in workers}
    third = by_name["masked"].seconds
    ratios = {name: _ratio(worker.seconds, third) for name, worker in by_name.items()}
    shared = _ratio(by_name["ours, shared"].seconds, by_name["ours"].seconds)
    print(f"{job.num_trained} trained tokens of {sum(len(row.ids) for row in job.rows)}")
    print("way            CPU s (lowest-highest)  trained tok/s  peak MiB  of masked  grad norm")
    for name, worker in by_name.items():
        seconds = worker.seconds
        spread = f"{median(seconds):6.2f} ({min(seconds):.2f}-{max(seconds):.2f})"
        peak = max(answer["bytes"] for answer in worker.answers) / 2**20
        print(
            f"{name:<14} {spread:<23} {job.num_trained / median(seconds):13.0f} {peak:9.0f} "
            f"{ratios[name]:9.2f}x  {worker.answers[-1]['norm']:.6g}"
        )
    saved, products = _shares(job)
    bar = 1 - 0.8 * products
    print(f"sharing leaves out {saved:.0%} of the tokens, {products:.0%} of the matrix products")
    bars = (
        ("ours, of masked", ratios["ours"], 1.0),
        ("ours, shared, of ours", shared, bar),
        ("ours, shared, of masked", ratios["ours, shared"], bar),
    )
    for name, ratio, most in bars:
        print(f"{name}: {ratio:.2f}x, bar {most:.2f}x: {'ok' if ratio <= most else 'MISSED'}")
    return 0 if all(ratio <= most for _, ratio, most in bars) else 1


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Median of the ratios of neighbouring repetitions."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    sys.exit(main())
