import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = __file__.rpartition("/")[0]
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.ranks)
            item.add_marker(pytest.mark.timeout(180))  # the processes share few cores
