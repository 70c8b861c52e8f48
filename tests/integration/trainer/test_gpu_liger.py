"""Liger's kernels against the layers that they replace; needs an accelerator and liger-kernel."""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

import pytest
import torch
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.trainer import TrainerConfig
from agentrl.trainer.device import resolve_device
from agentrl.trainer.fsdp import use_liger
from agentrl.trainer.trainer import LocalTrainer
from tests.one_thread import one_thread
from tests.unit.trainer.batches import on_policy, random_segments, tiny_model

__all__ = ["one_thread"]
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture
def device() -> torch.device:
    pytest.importorskip("liger_kernel")
    found = resolve_device("auto")
    if found.type == "cpu":
        pytest.skip("no accelerator")
    return found


@pytest.mark.usefixtures("device")
def test_steps_are_those_of_the_layers_themselves() -> None:
    batch = on_policy(tiny_model(), random_segments((30, 41, 17, 25)), advantages=(1, -1, 1, -1))
    weights: list[list[Tensor]] = []
    for liger in (False, True):
        model = tiny_model()
        trainer = LocalTrainer(
            model, TrainerConfig(device="auto", liger=liger, lr=1e-3), total_steps=3
        )
        for _ in range(3):
            trainer.update(batch)
        weights.append([p.detach().float().cpu() for p in model.parameters()])
    for ours, theirs in zip(*weights, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-4)


def test_an_unknown_kind_is_refused(device: torch.device) -> None:
    model = tiny_model()
    setattr(model.config, "model_type", "unheard of")  # noqa: B010  # typed as the class's own
    with pytest.raises(ConfigError, match="type unheard of, which Liger does not know"):
        use_liger(model, device)
