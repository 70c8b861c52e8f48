"""The configuration of a run: everything that `run.toml` and the flags can say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import ConfigDict, Field

from agentrl.config import Config
from agentrl.config.anchor import PathText, Reference, is_file
from agentrl.engine.config import EngineConfig
from agentrl.engine.local.models.resolve import TINY, ModelName
from agentrl.envs.context import ContextConfig
from agentrl.rollout.config import RolloutConfig
from agentrl.schedule import AsyncConfig
from agentrl.trainer.config import TrainerConfig


class EnvEntry(Config):
    """One `[[env]]` table: which environment, how often, and its own parameters beside them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Reference = Field(description="Built-in name, pkg.mod:Name or path/file.py:Name.")
    weight: float = Field(default=1.0, gt=0, description="Share of the tasks, relative.")

    @property
    def label(self) -> str:
        """Its name, with a file's name alone in place of its path."""
        place, _, name = self.name.rpartition(":")
        return f"{Path(place).name}:{name}" if is_file(place) else self.name

    @property
    def params(self) -> Mapping[str, object]:
        """The environment's own parameters, as they were given."""
        return self.model_extra or {}


class EvalConfig(Config):
    """Held-out evaluation."""

    every: int = Field(default=0, ge=0, description="Evaluate every so many steps; 0: never.")
    tasks: int = Field(default=128, ge=1, description="Held-out tasks per evaluation.")
    samples: int = Field(default=1, ge=1, description="Episodes per task (k of pass@k).")
    temperature: float = Field(default=1.0, ge=0, description="Sampling temperature; 0: greedy.")
    split: str = Field(default="heldout", description="Which tasks: heldout or train.")


class CheckpointConfig(Config):
    """What a killed run can resume from."""

    every: int = Field(default=10, ge=1, description="Checkpoint every so many steps.")
    keep: int = Field(default=2, ge=1, description="Newest checkpoints to keep.")
    best: str = Field(
        default="",
        description="Also keep the checkpoint of the highest value of this metric, such as "
        "eval/success; empty: none.",
    )
    background: bool = Field(
        default=False,
        description="Write while training goes on, from a copy in host memory.",
    )


class FaultConfig(Config):
    """When a process counts as dead."""

    deadline_s: float = Field(
        default=30.0,
        ge=1,
        description="Seconds until a process that hangs is given up: an engine's server without a "
        "sign of life, an environment's, a sandbox's, a verifier's or a rank's that was stopped.",
    )


class RayConfig(Config):
    """The cluster that `trainer.executor ray` uses."""

    address: str = Field(
        default="auto",
        description="auto (the one that this machine is part of), local (one that ends with the "
        "run) or host:port of its head node.",
    )
    cpus: float = Field(default=1.0, gt=0, description="CPUs that each rank asks for.")
    players: int | None = Field(
        default=None,
        ge=0,
        description="Actors that play the episodes; by default one on each node; 0: the driver "
        "plays them.",
    )
    code: tuple[PathText, ...] = Field(
        default=(),
        description="Folders and files with Python code of yours that the nodes lack: they get it.",
    )


Role: TypeAlias = Literal["actor", "rollout", "critic", "reference", "reward", "environment"]


class RolesConfig(Config):
    """The pool that each role of a run is in."""

    actor: str | None = Field(default=None, description="Where the policy is trained.")
    rollout: str | None = Field(default=None, description="Where started servers sample.")
    critic: str | None = Field(default=None, description="Where the critic is trained.")
    reference: str | None = Field(default=None, description="Where the reference model is.")
    reward: str | None = Field(default=None, description="Where the reward model is.")
    environment: str | None = Field(default=None, description="Where episodes are played.")


class WarmStartConfig(Config):
    """Supervised training on an environment's scripted demonstrations."""

    updates: int = Field(default=200, ge=1, description="Most optimizer steps.")
    batch: int = Field(default=32, ge=1, description="Demonstrations per optimizer step.")
    passes: int = Field(default=1, ge=1, description="How often each demonstration is trained on.")
    lr: float = Field(default=3e-3, gt=0, description="Learning rate.")
    warmup_steps: int = Field(default=10, ge=0, description="Steps until the rate is reached.")
    smoothing: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of each target spread over the vocabulary: leaves room to explore.",
    )
    stop_at: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Stop when the policy would sample a demonstration with this mean probability.",
    )


class RewardTrainingConfig(Config):
    """The training of a reward model on preference pairs."""

    model: ModelName = Field(
        default=TINY, description="What it begins as, as of a run: its head of scores is new."
    )
    passes: int = Field(default=1, ge=1, description="How often each pair is trained on.")
    batch: int = Field(default=32, ge=1, description="Pairs per optimizer step.")
    lr: float = Field(default=1e-5, gt=0, description="Peak learning rate; it falls to 0.")
    heldout: float = Field(
        default=0.1, gt=0, lt=1, description="Share of the prompts that is measured, not trained."
    )
    token_budget: int = Field(
        default=4096, ge=1, description="Tokens per micro-batch: bounds memory, not the result."
    )
    device: str = Field(default="cpu", description="cpu, auto or a kind of accelerator.")
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="What passes compute in; weights stay float32."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of everything random.")
    threads: int = Field(default=0, ge=0, description="CPU threads of torch; 0: torch's choice.")
    deterministic: bool = Field(
        default=False, description="Take only kernels that give the same bits each time."
    )


class RunConfig(Config):
    """A whole run."""

    name: str | None = Field(default=None, description="Name of the run; made up by default.")
    runs_dir: PathText = Field(default="runs", description="Folder that holds the runs.")
    model: ModelName = Field(
        default=TINY, description="tiny, smollm2-135m, a Hugging Face folder or a hub name."
    )
    env: tuple[EnvEntry, ...] = Field(default=(), description="The environments.")
    verifier: Reference | None = Field(
        default=None, description="Verifier instead of the environment's own: a name or reference."
    )
    tool_format: Reference | None = Field(
        default=None,
        description="Tool-call format: a name or reference; chosen from the chat template by "
        "default.",
    )
    steps: int = Field(default=100, ge=1, description="Optimizer steps.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of everything random.")
    deterministic: bool = Field(
        default=False, description="Fix admission order and batch shapes: bit-identical runs."
    )
    threads: int = Field(default=0, ge=0, description="CPU threads of torch; 0: torch's choice.")
    observers: tuple[Reference, ...] = Field(
        default=(), description="What watches the run: pkg.mod:Name or path/file.py:Name."
    )
    rollout: RolloutConfig = Field(default=RolloutConfig(), description="The sampling side.")
    context: ContextConfig = Field(
        default=ContextConfig(), description="What happens when a conversation grows too long."
    )
    async_: AsyncConfig = Field(
        default=AsyncConfig(), alias="async", description="How far sampling may run ahead."
    )
    trainer: TrainerConfig = Field(default=TrainerConfig(), description="The gradient side.")
    engine: EngineConfig = Field(default=EngineConfig(), description="The engine.")
    eval: EvalConfig = Field(default=EvalConfig(), description="Held-out evaluation.")
    checkpoint: CheckpointConfig = Field(default=CheckpointConfig(), description="Checkpoints.")
    fault: FaultConfig = Field(default=FaultConfig(), description="When a process counts as dead.")
    ray: RayConfig = Field(default=RayConfig(), description="The cluster, with executor ray.")
    pools: Mapping[str, str] = Field(
        default={},
        description='Named devices, such as {train = "4 x gpu", cpu = "*"}; empty: as the other '
        "keys say.",
    )
    roles: RolesConfig = Field(default=RolesConfig(), description="Which pool each role is in.")
    warm_start: WarmStartConfig = Field(
        default=WarmStartConfig(), description="The warm start of `sft` and of the tiny model."
    )


SEAMS = frozenset(
    {
        *("verifier", "trainer.estimator", "trainer.loss", "trainer.normalise", "trainer.correct"),
        *("rollout.sampler", "rollout.admission", "engine.kind", "tool_format", "observers"),
    }
)
"""The keys that name what users bring; in Python they take the object itself too."""

SHORT_NAMES: Mapping[str, str] = {
    "model": "model",
    "env": "env",
    "verifier": "verifier",
    "observer": "observers",
    "sampler": "rollout.sampler",
    "algorithm": "trainer.algorithm",
    "estimator": "trainer.estimator",
    "loss": "trainer.loss",
    "normalise": "trainer.normalise",
    "correct": "trainer.correct",
    "executor": "trainer.executor",
    "ray-address": "ray.address",
    "steps": "steps",
    "seed": "seed",
    "name": "name",
    "deterministic": "deterministic",
    "lr": "trainer.lr",
    "group-size": "rollout.group_size",
    "tasks-per-step": "rollout.tasks_per_step",
    "temperature": "rollout.temperature",
    "max-turns": "rollout.max_turns",
    "eval-every": "eval.every",
    "threads": "threads",
    "context": "context.policy",
    "engine": "engine.kind",
    "engine-url": "engine.sglang.url",
    "sandbox": "env.sandbox.backend",
}
"""The commonest keys by short names; the set is frozen by a test."""
