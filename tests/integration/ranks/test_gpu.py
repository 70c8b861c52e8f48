"""The same on an accelerator: one rank, its own backend, what is offloaded really is."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from agentrl.trainer.device import memory, resolve_device, synchronize
from agentrl.trainer.fsdp import local
from agentrl.trainer.parallel_dims import ParallelDims, Ranks, join, make_store
from agentrl.trainer.trainer import LocalTrainer
from tests.integration.ranks.cases import CONFIG, ragged, reference
from tests.unit.trainer.batches import tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator"),
]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    store = make_store("127.0.0.1", 0, 60.0, is_first=True)
    address = "127.0.0.1", int(store.port)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        joined = join(0, ParallelDims(), device=resolve_device("auto"), address=address)
        yield joined
        joined.leave()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"offload": True},
        {"activation_checkpointing": True, "activation_offload": True},
        {"precision": "bfloat16", "fp32_head": True},
    ],
)
def test_one_rank_of_an_accelerator(ranks: Ranks, options: dict[str, object]) -> None:
    batch = ragged((20, 7, 19, 3, 18, 33), 5)
    expected = reference(batch)
    model = tiny_model()
    nn.Module.to(model, ranks.device)
    config = CONFIG.model_copy(update=options)
    trainer = LocalTrainer(model, config, total_steps=2, ranks=ranks)
    loss = trainer.update(batch).loss
    assert loss == pytest.approx(expected.loss, rel=3e-2 if "precision" in options else 1e-3)
    assert trainer.update(batch).skipped is None
    synchronize(ranks.device)
    assert memory(ranks.device).used_bytes > 0
    kept_in_memory = {local(p).device.type for p in trainer.model.parameters()}
    assert kept_in_memory == {"cpu" if "offload" in options else ranks.device.type}
