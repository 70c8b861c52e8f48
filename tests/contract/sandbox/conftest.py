"""Real sandboxes: few of each backend for all tests, reset between them."""

from collections.abc import Callable, Iterator

import pytest

from agentrl.sandboxes import (
    SandboxOptions,
    SandboxPools,
    SandboxUnavailable,
    make_sandbox,
    run_sync,
)
from agentrl.testing.sandbox_arena import attack_options
from tests.contract.sandbox import shop

BACKENDS = ("bwrap", "docker")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `backend` on each, under its marker."""
    if "backend" in metafunc.fixturenames:
        marked = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in BACKENDS]
        metafunc.parametrize("backend", marked)


@pytest.fixture(scope="session")
def pools() -> Iterator[SandboxPools]:
    made = SandboxPools()
    yield made
    run_sync(made.close())


@pytest.fixture(scope="session")
def missing() -> Callable[[str], str]:
    """Why a backend does not work; empty if it does."""
    known: dict[str, str] = {}

    def find(backend: str) -> str:
        if backend not in known:
            sandbox = make_sandbox(attack_options(backend))
            try:
                run_sync(sandbox.start())
                known[backend] = ""
                run_sync(sandbox.close())
            except SandboxUnavailable as error:
                known[backend] = str(error)
        return known[backend]

    return find


@pytest.fixture
def options(backend: str, missing: Callable[[str], str]) -> SandboxOptions:
    """Options of a backend that works; else skip, or fail where it is required."""
    shop.require(backend, missing)
    return attack_options(backend)
