"""Greedy, temperature, top-p and seeds."""

from __future__ import annotations

import pytest
import torch

from magicpig_cli.engine.sampler import Sampler
from magicpig_cli.errors import MagicPigError

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0])


def test_temperature_zero_takes_the_likeliest():
    assert [Sampler()(LOGITS) for _ in range(5)] == [1] * 5


def test_a_seed_repeats_and_another_differs():
    flat = torch.zeros(1000)

    def draw(seed: int | None) -> list[int]:
        sampler = Sampler(temperature=1.0, seed=seed)
        return [sampler(flat) for _ in range(8)]

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_a_seed_that_is_drawn_is_told_and_repeats():
    first = Sampler(temperature=1.0)
    again = Sampler(temperature=1.0, seed=first.seed)
    flat = torch.zeros(1000)
    assert [first(flat) for _ in range(5)] == [again(flat) for _ in range(5)]


def test_frequencies_follow_the_softmax():
    sampler = Sampler(temperature=2.0, seed=1)
    draws = 4000
    counts = torch.bincount(torch.tensor([sampler(LOGITS) for _ in range(draws)]), minlength=4) / draws
    expected = torch.softmax(LOGITS / 2, dim=0)
    # Five standard errors of a binomial share.
    assert (counts - expected).abs().le(5 * (expected * (1 - expected) / draws).sqrt()).all()


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    # Probabilities 0.665, 0.245, 0.09, 0.012 (of the logits above, in order of likelihood).
    sampler = Sampler(temperature=1.0, top_p=0.8, seed=3)
    assert {sampler(LOGITS) for _ in range(300)} == {1, 2}
    almost_nothing = Sampler(temperature=1.0, top_p=1e-6, seed=3)
    assert {almost_nothing(LOGITS) for _ in range(50)} == {1}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_overflowed_numbers_are_an_error_and_not_an_answer(bad):
    with pytest.raises(MagicPigError, match="overflowed"):
        Sampler()(torch.tensor([0.0, bad]))
