from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A shared machine stalls now and then; pytest's own timeout is the one that counts.
settings.register_profile("agentrl", deadline=None)
settings.load_profile("agentrl")


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
