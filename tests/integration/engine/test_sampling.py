# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import numpy as np
import pytest
import torch

from agentrl.engine.local.rows import draw_ids, draw_uniforms


def seeds(num: int, start: int = 0) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.arange(start, start + num, dtype=np.uint64)


def test_uniforms_are_uniform_and_independent() -> None:
    by_seed = draw_uniforms(seeds(20_000), np.full(20_000, 3))
    by_position = draw_uniforms(np.full(20_000, 9, dtype=np.uint64), np.arange(20_000))
    for numbers in (by_seed, by_position):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
        assert ((counts - 1000) ** 2 / 1000).sum() < 44  # chi-square, 19 degrees, p = 0.001
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(by_seed, by_position)[0, 1]) < 0.03


def test_uniforms_are_a_fixed_function() -> None:
    again = [
        draw_uniforms(np.array([s], dtype=np.uint64), np.array([p]))[0] for s, p in ((1, 2), (2, 1))
    ]
    together = draw_uniforms(np.array([1, 2], dtype=np.uint64), np.array([2, 1]))
    assert together.tolist() == again
    assert again[0] != again[1]


@pytest.mark.parametrize("vocab", [3, 97, 128, 1000])
def test_draws_follow_the_distribution(vocab: int) -> None:
    torch.manual_seed(vocab)
    logits = torch.randn(vocab) * 2
    logits[::3] = -torch.inf
    num, temperature = 20_000, 1.7
    grid = (np.arange(num) + 0.5) / num
    ids, logprobs = draw_ids(
        logits.expand(num, -1), np.full(num, temperature, dtype=np.float32), grid
    )
    expected = torch.softmax(logits.double() / temperature, dim=-1).numpy()
    found = np.bincount(ids, minlength=vocab) / num
    assert np.abs(found - expected).max() <= 2 / num
    assert found[::3].sum() == 0
    assert logprobs == pytest.approx(np.log(expected[ids]), abs=1e-5)


@pytest.mark.parametrize("vocab", [1, 130, 4096])
def test_the_ends_of_the_unit_interval(vocab: int) -> None:
    """No id of probability zero is drawn, whatever rounding does."""
    logits = torch.full((4, vocab), -torch.inf)
    logits[:, vocab // 2] = 3.0
    ids, logprobs = draw_ids(
        logits, np.ones(4, dtype=np.float32), np.array([0.0, 5e-324, 0.5, 1 - 2**-53])
    )
    assert ids.tolist() == [vocab // 2] * 4
    assert logprobs.tolist() == [0.0] * 4


def test_greedy_and_sampled_rows_mix() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5]] * 2)
    ids, logprobs = draw_ids(logits, np.array([0, 2], dtype=np.float32), np.array([0.01, 0.01]))
    assert ids.tolist() == [1, 0]
    expected = [torch.log_softmax(logits[0] / t, -1)[i].item() for t, i in ((1, 1), (2, 0))]
    assert logprobs == pytest.approx(expected, abs=1e-6)
    ids, _ = draw_ids(logits, np.zeros(2, dtype=np.float32), np.array([0.9, 0.1]))
    assert ids.tolist() == [1, 1]


def test_bfloat16_logits_are_normalised_in_float32() -> None:
    logits = torch.randn(5, 97).bfloat16()
    ids, logprobs = draw_ids(logits, np.ones(5, dtype=np.float32), np.linspace(0.1, 0.9, 5))
    expected = torch.log_softmax(logits.float(), -1)[torch.arange(5), torch.from_numpy(ids)]
    assert logprobs == pytest.approx(expected.numpy(), abs=1e-6)


def test_not_a_number_shows_in_the_logprob() -> None:
    logits = torch.tensor([[0.0, 1.0], [0.0, torch.nan]])
    _, logprobs = draw_ids(logits, np.ones(2, dtype=np.float32), np.array([0.5, 0.5]))
    assert np.isfinite(logprobs).tolist() == [True, False]
