"""Whom the watch over an event loop blames for a stall."""

import sys

import pytest

from agentrl.aio import _Look  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("is_ready", "cpu_s", "blamed"), [(True, 0, False), (False, 0, True), (True, 1, True)]
)
def test_a_wait_for_a_processor_that_lasts_is_nobodys_fault(
    is_ready: bool, cpu_s: float, blamed: bool
) -> None:
    """Linux counts such a wait when it has ended; the thread seems to stand still until then."""
    stack = (sys._getframe(),)  # pyright: ignore[reportPrivateUsage]  # there is no public way
    before = _Look(stack, 0.0, 10.0, is_ready, 0.0, 0.0)
    now = _Look(stack, cpu_s, 11.0, is_ready, 0.0, 0.0)
    assert (now.lasting(before, longer_than_s=0.1) is not None) is blamed
