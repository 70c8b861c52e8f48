import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.models.load import load_model
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import RESERVED, Server, start
from agentrl.engine.sglang.weights import TensorTransport
from agentrl.trainer.weights import ModelWeights

READY_S = 400.0


@pytest.fixture(scope="session")
def server(
    sglang_folder: Path, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The real server with the tiny model, one for all tests."""
    logs = tmp_path_factory.mktemp("logs")
    running = start(EngineConfig(), tiny_folder, logs)
    try:
        asyncio.run(running.wait_ready(READY_S))
        yield running
    finally:
        running.stop()


@pytest.fixture
def model(tiny_folder: Path) -> PreTrainedModel:
    return load_model(tiny_folder)


@pytest.fixture
async def engine(server: Server, model: PreTrainedModel) -> AsyncIterator[SglangEngine]:
    """An engine over the real server, with the model's weights as version 0."""
    made = SglangEngine(
        [server.url],
        vocab_size=768,
        context_length=2048 - RESERVED,
        transport=TensorTransport(),
        timeout_s=60,
    )
    await made.start(ready_s=60, weights=ModelWeights(model))
    yield made
    await made.aclose()
