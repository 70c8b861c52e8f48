"""`LocalTrainer`: the optimizer steps of one batch.

    deal rows -> verify records -> for each epoch and mini-batch:
        micro-batches: logprobs, weighted sum, backward -> sums over ranks
        -> gate -> finite? -> clip -> AdamW

With several ranks each process has a `LocalTrainer` and its own share of the rows. All sums are
taken over the ranks before anything is decided, so all of them decide alike.

Suffixes: N tokens of a share, R rows, H lines of an output.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import logging
import math
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engine import WeightSource
from agentrl.engine.local.demands import context_length
from agentrl.errors import ConfigError, RecordMismatch, RunError
from agentrl.tokens import verify_batch
from agentrl.trainer.algorithms.losses import CheckedLoss, make_loss
from agentrl.trainer.checkpoint import load_checkpoint, save_checkpoint
from agentrl.trainer.config import TrainerConfig, check_heads, learning_rate
from agentrl.trainer.critic import Critic
from agentrl.trainer.device import CPU, give_back, memory_errors
from agentrl.trainer.export import export_hf
from agentrl.trainer.first_update_check import GapGate
from agentrl.trainer.fsdp import in_pass, is_sharded, prepare, settle, whole
from agentrl.trainer.logprobs import (
    HeadInputs,
    policy_logprobs,
    policy_scores,
    reference_inputs,
    sequence_logprobs,
)
from agentrl.trainer.lora import AdapterWeights, adapters_off, add_adapters
from agentrl.trainer.micro_batches import pack_micros
from agentrl.trainer.model import (
    check_reference,
    check_trainable,
    frozen_copy,
    make_optimizer,
)
from agentrl.trainer.objective import Objective, PolicyObjective, SupervisedObjective
from agentrl.trainer.packing import PackedRows
from agentrl.trainer.parallel_dims import SINGLE, Ranks
from agentrl.trainer.routing_replay import replayed, warn_of_unrecorded
from agentrl.trainer.sampled_tokens import SampledTokens
from agentrl.trainer.sharded_load import read_slices
from agentrl.trainer.shares import Dealer, Share, add_outputs
from agentrl.trainer.updates import (
    CRITIC_ALONE,
    Applied,
    BatchUpdate,
    Pass,
    StepStats,
    SupervisedStats,
    summarise_policy,
    summarise_updates,
    with_explained,
)
from agentrl.trainer.weights import ModelWeights
from agentrl.types import Batch

_LOG = logging.getLogger(__name__)

_END_S = 5.0
"""How long an update that was given up may take to notice: it looks before each micro-batch."""


class LocalTrainer:
    """Owns the float32 weights, the optimizer and the step counter.

    The reference is a copy of the weights at construction, or the one given:
    build the trainer from the starting weights, then load a checkpoint into it. With LoRA, the
    model gets adapters and the reference is the model without them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: TrainerConfig,
        *,
        total_steps: int,
        longest: int | None = None,
        reference: PreTrainedModel | None = None,
        ranks: Ranks = SINGLE,
        folder: Path | None = None,
        loss: CheckedLoss | None = None,
        apart: Collection[str] = (),
    ) -> None:
        """Prepare the model and make an optimizer for it.

        Args:
            model: to be trained, with float32 weights, or with none yet (`empty_model`).
            config: how.
            total_steps: steps of the run, for the learning rate.
            longest: most tokens of a row; by default the model's context.
            reference: instead of a copy.
            ranks: which of how many processes this is.
            folder: where the weights of a model without any are read from.
            loss: instead of the one that `config` names.
            apart: `critic` and `reference` are other groups' where they are named.

        Raises:
            ConfigError: the model cannot be trained faithfully.
        """
        if total_steps < 1:
            raise ConfigError(f"total_steps is {total_steps}, expected at least 1")
        heads = int(model.config.num_attention_heads)
        groups = int(getattr(model.config, "num_key_value_heads", None) or heads)
        check_heads(heads, groups, ranks.layout.sequence)
        self.loss = loss or make_loss(config)
        has_critic = config.has_critic and "critic" not in apart
        self.critic = Critic(model, config, ranks) if has_critic else None
        self.adapter = add_adapters(model, config.lora) if config.lora.rank else None
        """What `adapter_config.json` holds, with LoRA."""
        if folder is None:
            low = bool(config.lora.rank) and config.lora.dtype == "bfloat16"
            check_trainable(model, longest, low_precision=low)
        self._reference = reference
        if reference is not None:
            check_reference(reference, context_length(model, longest))
        elif config.has_reference and "reference" not in apart:
            # Under LoRA the objective takes the same model with its adapters off.
            self._reference = model if self.adapter else frozen_copy(model)
        for each in {id(m): m for m in (model, self._reference)}.values():
            if each is not None:
                prepare(each, config, ranks)
            if each not in (None, reference) and folder is not None:
                weights = CPU if config.offload else ranks.device
                read_slices(each, folder, device=ranks.device, weights=weights)
        if folder is not None:
            check_trainable(model, longest, low_precision=config.precision == "bfloat16")
        self.longest = context_length(model, longest)
        """Most tokens of a row: that far the model was checked."""
        self.model, self.ranks, self.config = model.train(), ranks, config
        self.total_updates = total_steps * config.minibatches * config.epochs
        self.optimizer = make_optimizer(model, config)
        self.step = 0
        """Optimizer steps taken."""
        self.attempted = 0
        """Updates that were taken or skipped: the learning rate goes by them."""
        self.num_skipped = self._skipped_in_a_row = 0
        """Updates whose gradient was not finite."""
        self.saving: Future[None] | None = None
        """A checkpoint that is being written."""
        self.has_changed = False
        """Set before an update changes anything; who wants to know sets it to False before."""
        self._updating, self._changing, self._is_given_up = Lock(), Lock(), False
        self.gate = GapGate(config.ratio_band, config.max_gap_alarms)
        """Compares engine and trainer before each update."""

    @cached_property
    def dealer(self) -> Dealer:
        """Deals batches to these ranks."""
        return Dealer(
            self.config,
            self.ranks.layout,
            width=int(self.model.config.hidden_size),
            longest=self.longest,
            loss=self.loss,
            is_quiet=self.ranks.rank > 0,
        )

    def update(self, batch: Batch) -> StepStats:
        """See `Trainer.update`; every rank gives the same batch."""
        stats = self.update_share(self.dealer.for_update(batch)[self.ranks.data_rank])
        return with_explained(stats, batch, self.config)

    def update_share(self, parts: Sequence[Share]) -> StepStats:
        """The same with this rank's share of each mini-batch."""
        with self._hold_update_lock():
            return self._update_policy(parts)

    def give_up(self) -> bool:
        """See `Trainer.give_up`; it may take until the end of a micro-batch."""
        with self._changing:
            self._is_given_up = True
            is_whole = not self.has_changed
        if self._updating.acquire(timeout=_END_S):
            self._updating.release()
        return is_whole

    @contextmanager
    def _hold_update_lock(self) -> Generator[None]:
        """What `give_up` waits for, in whatever thread."""
        with self._updating:
            # In a thread that is new to torch the first products would use all of the cores.
            torch.set_num_threads(torch.get_num_threads())
            yield

    def _update_policy(self, parts: Sequence[Share]) -> StepStats:
        """All updates of a step: each mini-batch once in each epoch, until one is an alarm."""
        self._check_saving()
        started = time.perf_counter()
        num_trained, num_verified = self._verify_own_rows(parts)
        first, updates, objectives = self.attempted, list[BatchUpdate](), list[PolicyObjective]()
        for share in [*parts] * self.config.epochs:
            objectives.append(PolicyObjective(share.batch, self.loss, self.config))
            updates.append(self._update_once(share, objectives[-1]))
            if updates[-1].alarm is not None:
                break
            if updates[-1].applied.skipped is None:
                self.gate.trained(share.newest)
        # As many as there would have been without groups that were left out, so that the rate is
        # where it should be.
        self.attempted = first + self.config.minibatches * self.config.epochs
        common = summarise_updates(
            updates,
            step=self.step,
            num_trained=num_trained,
            num_verified=num_verified,
            started=started,
        )
        return summarise_policy(common, updates, objectives, parts[0].batch.version)

    def _verify_own_rows(self, shares: Sequence[Share]) -> tuple[int, int]:
        """Trained tokens, and those whose record agreed, of all ranks; RecordMismatch on each."""
        own = [share.batch.take_rows(share.own_R) for share in shares]
        num_verified, fault = 0, None
        try:
            num_verified = sum(map(verify_batch, own))
        except RecordMismatch as error:
            fault = str(error)
        faults = self.ranks.gather(fault)
        if (found := next((f for f in faults if f is not None), None)) is not None:
            raise RecordMismatch(found)
        counts = np.array([sum(batch.num_trained for batch in own), num_verified], dtype=float)
        # Those of a replica have the same rows, which count once.
        trained, verified = self.ranks.sum_(counts * (self.ranks.sequence_rank == 0))
        return int(trained), int(verified)

    def _update_once(self, share: Share, objective: PolicyObjective) -> BatchUpdate:
        """One update by a mini-batch, of the policy and of the critic."""
        done = self._accumulate_gradients(share, objective)
        if not self.gate.is_open and not self.ranks.rank:
            warn_of_unrecorded(self.model, share.batch)
        alarm = self.gate.judge(done.tokens, share.newest, share.batch.episode_ids)
        if alarm is not None:
            self.optimizer.zero_grad(set_to_none=True)
            done = replace(done, nothing=alarm.reason)
        applied, critic = self._take_optimizer_step(done), None
        if self.critic is not None and share.batch.targets_N is not None and alarm is None:
            with memory_errors(self.config.token_budget):
                critic = self.critic.update(share)
        return BatchUpdate(done=done, applied=applied, alarm=alarm, critic=critic)

    def supervised_update(self, batch: Batch, *, smoothing: float = 0.0) -> SupervisedStats:
        """See `Trainer.supervised_update`; every rank gives the same batch."""
        share = self.dealer.for_supervised(batch)[self.ranks.data_rank]
        return self.supervised_update_share(share, smoothing)

    def supervised_update_share(self, share: Share, smoothing: float) -> SupervisedStats:
        """The same with this rank's share."""
        self._check_saving()
        started = time.perf_counter()
        num_trained, num_verified = self._verify_own_rows([share])
        done = self._accumulate_gradients(share, SupervisedObjective(share.batch, smoothing))
        return summarise_updates(
            [BatchUpdate(done=done, applied=self._take_optimizer_step(done))],
            step=self.step,
            num_trained=num_trained,
            num_verified=num_verified,
            started=started,
        )

    def with_outputs(self, batch: Batch, names: Collection[str]) -> Batch:
        """See `Trainer.with_outputs`; every rank gives the same batch."""
        shares = self.dealer.for_pass(batch)
        own = self.outputs_of_share(shares[self.ranks.data_rank], names)
        return add_outputs(batch, shares, self.ranks.gather(own))

    def outputs_of_share(
        self, share: Share, names: Collection[str]
    ) -> dict[str, NDArray[np.float32]]:
        """[H, K] By name what models say of the share's trained tokens, 0 where others compute it.

        Raises ConfigError for a model that is not here.
        """
        found: dict[str, NDArray[np.float32]] = {}
        with self._hold_update_lock(), memory_errors(self.config.token_budget), torch.no_grad():
            if "values" in names:
                if self.critic is None:
                    raise ConfigError("trainer.algorithm has no critic; set it to ppo")
                found["values"] = self.critic.values(share)
            if "reference" in names:
                lines = [self._compute_reference_logprobs]
                if self.config.kl.where == "reward" and self.config.kl.kind == "exact":
                    lines.append(self._compute_divergences)
                found["reference"] = self._compute_tokens(share, lines)
            if "proximal" in names:
                compute = partial(policy_logprobs, self.model)
                found["proximal"] = self._compute_tokens(share, [compute])
        return {name: lines_HN[:, share.batch.mask_N] for name, lines_HN in found.items()}

    def _compute_tokens(
        self, share: Share, lines: Sequence[Callable[[PackedRows, float], Tensor]]
    ) -> NDArray[np.float32]:
        """[H, N] What each computes of the trained tokens at the batch's temperature."""
        found_HN = np.zeros((len(lines), share.batch.num_tokens), dtype=np.float32)
        for line_N, compute in zip(found_HN, lines, strict=True):
            for packed in self._pack_own_micro_batches(share.batch, share.micros):
                line_N[packed.source_K] = compute(packed, share.batch.temperature).cpu().numpy()
            self._settle_models()
        return found_HN

    def _compute_reference_logprobs(self, packed: PackedRows, temperature: float) -> Tensor:
        if self._reference is None:
            raise ConfigError(
                "there is no reference: set trainer.kl.coef above 0, or trainer.reference"
            )
        with adapters_off(self._reference):
            return policy_logprobs(self._reference, packed, temperature)

    def _compute_divergences(self, packed: PackedRows, temperature: float) -> Tensor:
        reference = self._compute_reference(packed, temperature)
        return policy_scores(self.model, packed, temperature, reference=reference)[3]

    def _compute_reference(self, packed: PackedRows, temperature: float) -> HeadInputs:
        """What the reference's distributions at a micro-batch's trained tokens come from."""
        assert self._reference is not None  # the penalty has a coefficient
        with adapters_off(self._reference):
            return reference_inputs(self._reference, packed, temperature)

    def _settle_models(self) -> None:
        for model in (self.model, self._reference):
            if model is not None:
                settle(model)

    def weights(self) -> WeightSource:
        """See `Trainer.weights`."""
        if self.adapter is not None and self.config.lora.publish == "adapter":
            return AdapterWeights(self.model)
        return ModelWeights(self.model, self.ranks.rank)

    def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """See `Trainer.logprobs`."""
        found = in_pass(self.model, lambda: sequence_logprobs(self.model, ids, temperature))
        settle(self.model)
        return found

    save = save_checkpoint
    load = load_checkpoint

    def finish_saving(self) -> None:
        """Wait for a checkpoint that is being written; raises RunError if it could not be."""
        saving, self.saving = self.saving, None
        if saving is not None:
            saving.result()

    def export(
        self, tokenizer_folder: Path, out: Path, *, adapter: bool = False, card: str = ""
    ) -> Path:
        """See `Trainer.export`."""
        return export_hf(
            self.model, tokenizer_folder, out, adapter=adapter, card=card, ranks=self.ranks
        )

    def release_memory(self) -> None:
        """See `Trainer.release_memory`."""
        self._move_optimizer_state(CPU)
        give_back(self.ranks.device)

    def reclaim_memory(self) -> None:
        """See `Trainer.reclaim_memory`."""
        self._move_optimizer_state(self.ranks.device)

    def _move_optimizer_state(self, place: torch.device) -> None:
        if is_sharded(self.config, self.ranks):
            return
        optimizers = [self.optimizer, *([self.critic.optimizer] if self.critic else [])]
        for state in (s for o in optimizers for s in o.state.values()):
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.ndim:
                    state[name] = value.to(place)

    def close(self) -> None:
        """Bring the last checkpoint to the disk."""
        self.finish_saving()

    def _check_given_up(self) -> None:
        if self._is_given_up:
            raise RunError("the update was given up; resume the run")

    def _check_saving(self) -> None:
        if self.saving is not None and self.saving.done():
            self.finish_saving()

    @property
    def _pretraining_updates(self) -> int:
        """Those at the start in which the critic alone learns."""
        config = self.config
        return (
            config.critic.pretrain * config.minibatches * config.epochs if config.has_critic else 0
        )

    def _accumulate_gradients(self, share: Share, objective: Objective) -> Pass:
        """Gradients of all micro-batches."""
        self.optimizer.zero_grad(set_to_none=True)
        # What has no gradient is measured all the same, so that the gap is judged.
        batch, alone = share.batch, self.attempted < self._pretraining_updates
        loss = 0.0
        logprobs_N = np.zeros(batch.num_tokens)
        measured_N = np.zeros(batch.num_tokens, dtype=np.bool_)
        for micros, is_active in ((share.micros, True), (share.measured, False)):
            backward = is_active and not alone
            for packed in self._pack_own_micro_batches(batch, micros):
                with (
                    memory_errors(self.config.token_budget),
                    replayed(self.model, packed),
                    torch.set_grad_enabled(backward),
                ):
                    scores_SK = policy_scores(
                        self.model,
                        packed,
                        batch.temperature,
                        full=objective.is_full,
                        reference=self._compute_reference(packed, batch.temperature)
                        if objective.has_exact_penalty
                        else None,
                    )
                    share_of_loss = objective.loss(packed, scores_SK)
                    if backward:
                        torch.autograd.backward(share_of_loss)
                loss += float(share_of_loss.detach())
                logprobs_N[packed.source_K] = scores_SK[0].detach().cpu().numpy()
                measured_N[packed.source_K] = True
        self._settle_models()
        with self._changing:
            self._check_given_up()
            self.has_changed = True
        found = self.ranks.sum_(np.concatenate([[loss], objective.sums]))
        objective.sums = found[1:]
        own = SampledTokens.of(
            share, logprobs_N, measured_N, has_rejected=self.ranks.sequence_rank == 0
        )
        return Pass(
            loss=float(found[0]),
            tokens=SampledTokens.join(self.ranks.gather(own)),
            nothing=CRITIC_ALONE if alone else share.nothing,
        )

    def _pack_own_micro_batches(
        self, batch: Batch, micros: Sequence[Sequence[int]]
    ) -> Iterator[PackedRows]:
        """This rank's, until the update is given up."""
        for packed in pack_micros(batch, micros, self.ranks):
            self._check_given_up()
            yield packed

    def _take_optimizer_step(self, done: Pass) -> Applied:
        """Take the step, unless there is no gradient or it is not finite."""
        alone = self._pretraining_updates
        before = max(0, self.attempted - alone)
        lr = learning_rate(before, self.config, self.total_updates - alone)
        self.attempted += 1
        if done.nothing is not None:
            return Applied(lr=lr, skipped=done.nothing)
        parameters = self.model.parameters()
        norm = whole(torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm))
        grad_norm = float(norm)
        if not math.isfinite(grad_norm) or not math.isfinite(done.loss):
            return self._skip_optimizer_step(grad_norm, lr, done.loss)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._skipped_in_a_row = 0
        return Applied(grad_norm=grad_norm, lr=lr)

    def _skip_optimizer_step(self, grad_norm: float, lr: float, loss: float) -> Applied:
        self.optimizer.zero_grad(set_to_none=True)
        self.num_skipped += 1
        self._skipped_in_a_row += 1
        reason = f"the loss is {loss} and the gradient norm {grad_norm}, not finite"
        if self._skipped_in_a_row >= self.config.max_skipped_steps:
            raise RunError(
                f"{reason}, for {self._skipped_in_a_row} updates in a row; the weights are "
                f"those of step {self.step}: lower the learning rate or look at the last batches"
            )
        return Applied(grad_norm=grad_norm, lr=lr, skipped=reason)
