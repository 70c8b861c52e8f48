import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from agentrl.engine.servers.install import Product
from agentrl.engine.sglang.install import SGLANG
from agentrl.engine.vllm.install import VLLM
from agentrl.testing.local_ray import LocalRay, local_ray
from tests.preloaded import Preloaded

_SGLANG, _VLLM = SGLANG.folder, VLLM.folder  # before the tests get a cache of their own

# A shared machine stalls now and then; pytest's own timeout is the one that counts.
# How long examples took to draw, and how many of the first few were of no use, is chance.
_CHANCE = (HealthCheck.too_slow, HealthCheck.filter_too_much)
# The same examples each time: other ones are what the nightly run is for.
settings.register_profile(
    "agentrl",
    deadline=None,
    max_examples=20,
    suppress_health_check=_CHANCE,
    derandomize=True,
)
settings.register_profile("nightly", deadline=None, max_examples=200, suppress_health_check=_CHANCE)
settings.load_profile("agentrl")
gc.disable()  # while the tests are collected


def pytest_collection_finish() -> None:
    """Keep the collector from what was imported: it took a tenth of the time to look at torch."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, made once."""
    from agentrl.engine.local.models.tiny import make_tiny

    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests make apart from the user's cache; big downloads stay shared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTRL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Preloaded]:
    """Runs commands of `agentrl`, without the seconds that each needs for its imports."""
    with Preloaded() as process:
        yield process


def found_server(product: Product, folder: Path) -> Iterator[Path]:
    """The environment of a server; without one the test is skipped, in CI it fails."""
    if product.installed(folder) is None:
        reason = f"no {product.title} in {folder}; run: agentrl engine install {product.name} --cpu"
        if os.environ.get(f"REQUIRE_{product.name.upper()}") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(product.variable, str(folder))
        yield folder


@pytest.fixture(scope="session")
def sglang_folder() -> Iterator[Path]:
    """The environment of the SGLang server."""
    yield from found_server(SGLANG, _SGLANG)


@pytest.fixture(scope="session")
def vllm_folder() -> Iterator[Path]:
    """The environment of the vLLM server."""
    yield from found_server(VLLM, _VLLM)


@pytest.fixture(scope="session")
def two_raylets() -> Iterator[LocalRay]:
    """A Ray cluster of two nodes with a CPU each: two ranks are on both."""
    with local_ray(nodes=2, cpus=1) as found:
        yield found
