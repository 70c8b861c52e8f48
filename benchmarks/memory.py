"""Is the predicted memory the measured one? A child process loads, samples and trains.

The growth of its resident memory, from after its imports to its peak, is compared with what
`agentrl train --dry-run --device-memory` predicts, for a random Llama shape of at least 100 M
parameters. The exit code says whether each is within 15 %.

Usage: python benchmarks/memory.py [full] [lora] [ppo]
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import asyncio
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.rollout import make_batch
from agentrl.tokens import TokenRecord
from agentrl.types import Episode, EpisodeSession, EpisodeStop, Score, Task, TurnRecord
from agentrl.types import Sampling as Ask

if TYPE_CHECKING:
    from agentrl.engine.local.engine import LocalEngine

MOST_OFF = 0.15
TOKEN_BUDGET = 512
PROMPT, COMPLETION, ROWS = 8, 119, 8
SETTINGS: dict[str, dict[str, object]] = {
    "full": {},
    "lora": {"lora": {"rank": 16}},
    "ppo": {"algorithm": "ppo"},
}


def make_folder(folder: Path) -> None:
    """A random model of 124 M parameters; the child loads it like any other."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from agentrl.engine.local.models.resolve import resolve_model

    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tiny = resolve_model("tiny")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((tiny / name).read_bytes())


def child(folder: Path, name: str) -> None:
    """Print the predicted parts and the measured growth."""
    import torch

    from agentrl.engine.config import EngineConfig
    from agentrl.engine.local.engine import LocalEngine
    from agentrl.engine.local.models.load import load_model
    from agentrl.orchestration.kinds import LocalKind
    from agentrl.trainer.algorithms.advantages.group_relative import grpo
    from agentrl.trainer.algorithms.normalisations import token_mean
    from agentrl.trainer.config import TrainerConfig
    from agentrl.trainer.memory import estimate
    from agentrl.trainer.trainer import LocalTrainer

    torch.set_num_threads(1)
    wide = {"token_budget": TOKEN_BUDGET, "ratio_band": {"mean": 1e9, "max": 1e9}}
    config = TrainerConfig.model_validate(wide | SETTINGS[name])
    copied = bool(config.lora.rank)
    engine_config = EngineConfig(slots=ROWS, share_weights=False if copied else "auto")
    footprint = LocalKind().footprint(engine_config, rows=ROWS, longest=PROMPT + COMPLETION)
    need = estimate(folder, config, footprint)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = resident("VmRSS")
    model = load_model(folder)
    engine = LocalEngine(model, engine_config) if copied else None
    trainer = LocalTrainer(model, config, total_steps=2)
    episodes = asyncio.run(play(engine or LocalEngine(model, engine_config)))
    for _ in range(2):
        batch = make_batch(episodes, temperature=1.0)
        batch = replace(batch, advantages_N=grpo(batch), weights_N=token_mean(batch))
        trainer.update(batch if trainer.critic is None else trainer.with_outputs(batch, ["values"]))
    print(json.dumps({"parts": dict(need.parts), "measured": resident("VmHWM") - before}))


async def play(engine: "LocalEngine") -> list[Episode]:
    """One turn for each row, all at once; every second one is rewarded."""
    prompts = [range(10 * row, 10 * row + PROMPT) for row in range(ROWS)]
    asked = Ask(max_new_tokens=COMPLETION)
    done = await asyncio.gather(
        *(engine.generate(list(p), asked, EpisodeSession(str(p.start))) for p in prompts)
    )
    episodes: list[Episode] = []
    for row, (prompt, completion) in enumerate(zip(prompts, done, strict=True)):
        record = TokenRecord(engine.vocab_size)
        record.append_prompt(list(prompt))
        record.append_sampled(completion)
        episodes.append(
            Episode(
                id=str(row),
                env="memory",
                task=Task(prompt="memory"),
                split="train",
                group=0,
                member=row,
                attempt=0,
                seed=0,
                segments=(record.close(),),
                messages=(),
                turns=(TurnRecord(reward=row % 2),),
                stop=EpisodeStop.ANSWERED,
                outcome=Score(value=row % 2),
            )
        )
    return episodes


def resident(key: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def compare(folder: Path, name: str) -> float:
    """The predicted growth over the measured one; prints both."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(folder), name],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    predicted, measured = sum(found["parts"].values()), found["measured"]
    parts = "  ".join(f"{k} {v / 1e6:.0f}" for k, v in found["parts"].items() if v)
    print(
        f"{name:6s} predicted {predicted / 1e6:6.0f} MB, measured {measured / 1e6:6.0f} MB, "
        f"ratio {predicted / measured:.3f}   ({parts})",
        flush=True,
    )
    return float(predicted / measured)


def main() -> int:
    """Compare for each of the settings; 0 if all are near enough."""
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), sys.argv[3])
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_folder(folder)
        ratios = [compare(folder, name) for name in sys.argv[1:] or SETTINGS]
    return 0 if all(abs(ratio - 1) <= MOST_OFF for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
