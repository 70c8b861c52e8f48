"""How tasks are spread over a mixture of environments."""

from hypothesis import given
from hypothesis import strategies as st

from agentrl.orchestration.env_mix import spread


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5), st.integers(0, 60))
def test_everyone_gets_a_share_and_nothing_is_lost(weights: list[float], total: int) -> None:
    shares = spread(weights, total)
    assert sum(shares) == total
    assert min(shares) >= (total >= len(weights))


def test_shares_follow_the_weights() -> None:
    assert spread([3, 1], 8) == [6, 2]
    assert spread([1, 0.001], 10) == [9, 1]
