from collections.abc import Iterator

import pytest

from agentrl.testing.local_ray import LocalRay, local_ray


@pytest.fixture(scope="session")
def two_raylets() -> Iterator[LocalRay]:
    with local_ray(nodes=2, cpus=2) as found:
        yield found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = __file__.rpartition("/")[0]
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.ranks)
            item.add_marker(pytest.mark.timeout(180))  # the processes share few cores
