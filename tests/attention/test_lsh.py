"""The sampled layer on the seam: what is exact, what is in the tables; a long answer stays sampled."""

from __future__ import annotations

import pytest
import torch

from magicpig_cli.attention.base import LayerContext, StepStats
from magicpig_cli.attention.budget import lsh_params
from magicpig_cli.attention.exact import attend_exactly
from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.attention.transfer import InPlace
from magicpig_cli.lsh.params import LayerShape, LshParams
from magicpig_cli.store.kv import LayerStore

SHAPE = LayerShape(4, 2, 64)
CERTAIN = LshParams(n_bits=1, n_tables=64)


def _context(n_tokens: int) -> LayerContext:
    store = LayerStore(2, 64, n_tokens)
    generator = torch.Generator().manual_seed(1)
    store.write(0, *(torch.randn(2, n_tokens, 64, generator=generator) for _ in range(2)))
    return LayerContext(1, 4, SHAPE, 0.125, 0.0, store, StepStats(), torch.device("cpu"), InPlace())


def _step(context: LayerContext, attention, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    key, value = (torch.randn(2, 1, 64, generator=generator) for _ in range(2))
    context.store.write(context.store.n_tokens, key, value)
    query = torch.randn(4, 64, generator=generator)
    context.stats.reset()
    return query, attention.attend(query)[0].clone()


def test_a_long_answer_stays_sampled_and_certain_sampling_stays_exact():
    context = _context(900)
    attention = Lsh(CERTAIN).layer(context)
    attention.prefilled(torch.empty(4, 0, 64))
    generator = torch.Generator().manual_seed(2)
    offered = []
    for _ in range(1300):
        query, output = _step(context, attention, generator)
        offered.append(context.stats.keys_offered // SHAPE.n_q_heads)
    exact, _ = attend_exactly(query, *context.store.read(0, context.store.n_tokens), 0.125)
    torch.testing.assert_close(output, exact, atol=2e-3, rtol=0)
    # Sinks and recent window stay out of the tables; tokens enter them in batches, twice in 1,300 steps.
    assert offered[0] == 900 - 64 - 4
    assert sorted(set(offered)) == [832, 1344, 1856]


def test_a_mark_is_come_back_to():
    context = _context(900)
    attention = Lsh(LshParams(6, 40)).layer(context)
    attention.prefilled(torch.empty(4, 0, 64))
    marks = context.store.mark(), attention.mark()

    def answer() -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        return torch.stack([_step(context, attention, generator)[1] for _ in range(600)])

    first = answer()
    context.store.rewind(marks[0])
    attention.rewind(marks[1])
    torch.testing.assert_close(answer(), first, atol=0, rtol=0)


def test_tables_come_out_the_same_however_late_they_are_built():
    """A document, a question long enough to enter them, answers, and back to the document's end."""

    def answers(prepare_at: set[int]) -> torch.Tensor:
        context = _context(900)
        attention = Lsh(LshParams(6, 40)).layer(context)
        generator = torch.Generator().manual_seed(5)
        outputs = []

        def reached(place: int) -> None:
            if place in prepare_at:
                attention.prepare()

        attention.prefilled(torch.empty(4, 0, 64))
        reached(0)
        marks = context.store.mark(), attention.mark()
        for question in range(3):
            new = torch.randn(2, 600, 64, generator=generator)
            context.store.write(context.store.n_tokens, new, new)
            attention.prefilled(torch.empty(4, 0, 64))
            reached(1 + question)
            if question != 1:  # one is read and never answered
                outputs += [_step(context, attention, generator)[1] for _ in range(3)]
            context.store.rewind(marks[0])
            attention.rewind(marks[1])
        outputs.append(_step(context, attention, generator)[1])
        return torch.stack(outputs)

    at_once = answers({0, 1, 2, 3})
    for late in ({1}, {2}, {3}, {2, 3}, set()):
        torch.testing.assert_close(answers(late), at_once, atol=0, rtol=0)


@pytest.mark.parametrize("n_tokens", [1, 3, 5, 68, 69, 70, 130])
def test_prompts_shorter_than_what_is_exact_anyway(n_tokens):
    context = _context(n_tokens)
    attention = Lsh(CERTAIN).layer(context)
    attention.prefilled(torch.empty(4, 0, 64))
    query, output = _step(context, attention, torch.Generator().manual_seed(4))
    exact, _ = attend_exactly(query, *context.store.read(0, context.store.n_tokens), 0.125)
    torch.testing.assert_close(output, exact, atol=2e-3, rtol=0)


def test_given_bits_and_tables_stand():
    assert lsh_params(5000, 7).n_bits == 7
    assert lsh_params(5000, n_tables=33).n_tables == 33
    assert lsh_params(5000, min_collisions=3).min_collisions == 3
    assert lsh_params(500_000, seed=7) == LshParams(10, 150, 3, 7)


def test_collisions_follow_bits_and_tables_that_are_given():
    usual = lsh_params(5000)
    half = lsh_params(5000, n_tables=usual.n_tables // 2)
    assert half.min_collisions == usual.min_collisions // 2
    assert lsh_params(5000, 10, 150) == LshParams(10, 150, 2)
    assert lsh_params(5000, n_tables=2).min_collisions == 2
    assert lsh_params(5000, n_tables=4096).min_collisions == 16
