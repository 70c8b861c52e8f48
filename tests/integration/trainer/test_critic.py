"""The critic: values of states, an optimizer of its own, the same bits after a restart."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.errors import ConfigError, RunError
from agentrl.trainer import CostConfig, CriticConfig, LoraConfig, RatioBandConfig, TrainerConfig
from agentrl.trainer.algorithms.advantages.gae import gae
from agentrl.trainer.algorithms.advantages.safe import safe_gae
from agentrl.trainer.algorithms.losses import make_loss
from agentrl.trainer.algorithms.value_targets import explained_share
from agentrl.trainer.critic import Critic
from agentrl.trainer.parallel_dims import ParallelDims
from agentrl.trainer.shares import Dealer, Share
from agentrl.trainer.trainer import LocalTrainer
from agentrl.trainer.updates import CRITIC_ALONE
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, random_segments, tiny_model

LENGTHS = (20, 7, 19, 3, 18)
REWARDS = (1.0, 0.0, 1.0, 0.0, 1.0)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def config(token_budget: int = 4096, rank: int = 0, cost: str = "") -> TrainerConfig:
    return TrainerConfig(
        algorithm="ppo",
        lr=1e-3,
        token_budget=token_budget,
        critic=CriticConfig.model_validate({"lr": 3e-3, "clip": 1e9, "max_grad_norm": 1e9}),
        lora=LoraConfig(rank=rank),
        cost=CostConfig(part=cost),
        ratio_band=RatioBandConfig(mean=1e9, max=1e9),
    )


def batch() -> Batch:
    segments = random_segments(LENGTHS)
    turns = [int(s.turns_T.max()) + 1 for s in segments]
    rewards = [(*[0.0] * (n - 1), r) for n, r in zip(turns, REWARDS, strict=True)]
    return batch_of(segments, turn_rewards=rewards, weights=(1, 0.5, 1, 2, 1))


def share_of(batch: Batch, token_budget: int = 4096) -> Share:
    """All of it; for an update once it has values."""
    settings = config(token_budget)
    dealer = Dealer(settings, ParallelDims(), width=32, longest=99, loss=make_loss(settings))
    return (dealer.for_pass(batch) if batch.values_N is None else dealer.for_update(batch)[0])[0]


def test_values_and_gradients_are_those_of_the_unsplit_batch() -> None:
    made, model = batch(), tiny_model(dtype=torch.float64)
    whole, split = Critic(model, config()), Critic(model, config(token_budget=20))
    with torch.no_grad():
        for critic in (whole, split):
            critic.model.double().head.weight.fill_(0.1)
    (rows,) = whole._pack_own_micro_batches(share_of(made))  # pyright: ignore[reportPrivateUsage]
    assert not whole.model(rows)._is_view()  # FSDP may miss the gradient of one
    values_N = whole.values(share_of(made))[0]
    for r in range(made.num_rows):
        ids = torch.from_numpy(made.ids_N[made.row(r)]).long()[None]
        with torch.no_grad():
            hidden = model.base_model(input_ids=ids).last_hidden_state[0]
        expected = 0.1 * hidden.sum(1)[:-1].numpy()
        trained = made.mask_N[made.row(r)][1:]
        assert values_N[made.row(r)][1:][trained] == pytest.approx(expected[trained], rel=1e-5)
    assert not values_N[~made.mask_N].any()
    valued = replace(made, values_N=values_N, advantages_N=made.weights_N)
    caught: list[dict[str, torch.Tensor]] = []
    for critic, token_budget in ((whole, 4096), (split, 20)):
        named = dict(critic.model.named_parameters())

        def catch(*_: object, named: dict[str, torch.nn.Parameter] = named) -> None:
            caught.append({n: p.grad.clone() for n, p in named.items() if p.grad is not None})

        critic.optimizer.register_step_pre_hook(catch)
        critic.update(share_of(valued, token_budget))
    assert caught[0].keys() == caught[1].keys()
    for name, grad in caught[0].items():
        torch.testing.assert_close(grad, caught[1][name], rtol=1e-9, atol=1e-12)
    # By hand: the head's bias gets the weighted mean error.
    assert made.weights_N is not None
    weights = made.weights_N[made.mask_N]
    returns = np.repeat(np.array(REWARDS), np.diff(made.offsets_R1))[made.mask_N]
    error = (weights * (values_N[made.mask_N] - returns)).sum()
    assert float(caught[0]["head.bias"]) == pytest.approx(error)


@pytest.mark.parametrize("rank", [0, 4])
def test_ppo_learns_the_values_and_leaves_the_policys_backbone_alone(rank: int) -> None:
    trainer = LocalTrainer(tiny_model(), config(rank=rank), total_steps=60)
    made = batch()
    explained = []
    for _ in range(40):
        valued = trainer.with_outputs(made, ["values"])
        stats = trainer.update(replace(valued, advantages_N=gae(valued)))
        assert stats.skipped is None
        assert stats.value_explained is not None
        explained.append(stats.value_explained)
    assert explained[0] < 0  # values are 0, the mean return is not
    assert explained[-1] > 0.9
    assert trainer.critic is not None
    ours = {id(p) for p in trainer.model.parameters()}
    assert not ours & {id(p) for p in trainer.critic.model.parameters()}


def test_the_critic_can_learn_alone_first() -> None:
    settings = {"minibatches": 1, "epochs": 2, "warmup_steps": 3, "schedule": "linear"}
    critic = config().critic.model_copy(update={"pretrain": 2})
    first = config().model_copy(update={**settings, "critic": critic})
    trainer = LocalTrainer(tiny_model(), first, total_steps=5)
    plain = LocalTrainer(tiny_model(), config().model_copy(update=settings), total_steps=3)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    rates, valued = list[float](), batch()
    for step in range(5):
        valued = trainer.with_outputs(batch(), ["values"])
        stats = trainer.update(replace(valued, advantages_N=gae(valued)))
        is_alone = step < 2
        assert (stats.skipped == CRITIC_ALONE) is is_alone
        assert stats.value_skipped is None
        assert all(map(torch.equal, before, trainer.model.parameters())) is is_alone
        if is_alone:
            assert stats.gap_max > 0  # the gap is judged all the same
        else:
            rates.append(stats.lr)
    assert trainer.critic is not None
    assert rates == [plain.update(replace(valued, advantages_N=gae(valued))).lr for _ in range(3)]
    assert explained_share(trainer.with_outputs(batch(), ["values"]), first.critic) > 0


def test_a_second_head_learns_the_cost_and_the_policy_pays_for_it() -> None:
    trainer = LocalTrainer(tiny_model(), config(cost="harm"), total_steps=60)
    costs = np.array([0.0, 1.0, 1.0, 0.5, 0.0])
    made = replace(batch(), costs_E=costs, multiplier=2.0)
    for _ in range(40):
        valued = trainer.with_outputs(made, ["values"])
        assert trainer.update(replace(valued, advantages_N=safe_gae(valued))).skipped is None
    valued = trainer.with_outputs(made, ["values"])
    assert valued.values_N is not None
    assert valued.cost_values_N is not None
    episode_N = np.repeat(made.episode_R, np.diff(made.offsets_R1))[made.mask_N]
    for values_N, meant in ((valued.values_N, np.array(REWARDS)), (valued.cost_values_N, costs)):
        left = ((values_N[made.mask_N] - meant[episode_N]) ** 2).mean()
        assert left < 0.1 * meant[episode_N].var()


def test_a_gradient_of_the_critic_that_is_not_finite_is_told_and_counted(tmp_path: Path) -> None:
    trainer = LocalTrainer(tiny_model(), config(), total_steps=9)
    assert trainer.critic is not None
    valued = trainer.with_outputs(batch(), ["values"])
    valued = replace(valued, advantages_N=gae(valued))

    def spoil(_: object, grads: Any, __: object) -> Any:
        return tuple(gradient * float("nan") for gradient in grads)

    poison = trainer.critic.model.head.register_full_backward_hook(spoil)
    before = [p.detach().clone() for p in trainer.critic.model.parameters()]
    for count in (1, 2):
        stats = trainer.update(valued)
        assert stats.skipped is None
        assert stats.value_skipped is not None
        assert "and its gradient norm nan, not finite" in stats.value_skipped
        assert trainer.critic.num_skipped == count
    assert all(map(torch.equal, before, trainer.critic.model.parameters()))
    resumed = LocalTrainer(tiny_model(3), config(), total_steps=6)
    resumed.load(trainer.save(tmp_path, step=1, state={}))
    assert resumed.critic is not None
    assert resumed.critic.num_skipped == 2
    with pytest.raises(RunError, match=r"for 3 updates in a row; lower trainer\.critic"):
        trainer.update(valued)
    poison.remove()
    assert trainer.update(valued).value_skipped is None


def test_the_critic_is_in_the_checkpoint(tmp_path: Path) -> None:
    def train(trainer: LocalTrainer, steps: int) -> None:
        for _ in range(steps):
            valued = trainer.with_outputs(batch(), ["values"])
            trainer.update(replace(valued, advantages_N=gae(valued)))

    straight = LocalTrainer(tiny_model(), config(), total_steps=6)
    train(straight, 1)
    path = straight.save(tmp_path, step=1, state={})
    train(straight, 2)
    resumed = LocalTrainer(tiny_model(3), config(), total_steps=6)
    resumed.load(path)
    train(resumed, 2)
    ours, theirs = (
        trainer.with_outputs(batch(), ["values"]).values_N for trainer in (straight, resumed)
    )
    assert ours is not None
    assert theirs is not None
    assert ours.tolist() == theirs.tolist()


def test_without_a_critic_there_are_no_values() -> None:
    trainer = LocalTrainer(tiny_model(), TrainerConfig(), total_steps=1)
    with pytest.raises(ConfigError, match=r"trainer\.algorithm has no critic"):
        trainer.with_outputs(batch(), ["values"])
