"""The engine's main path on the embedded model: exact prefill, certain sampling, prefix reuse, repetition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from magicpig_cli.attention.dense import Dense
from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.attention.session import Session
from magicpig_cli.documents import Document
from magicpig_cli.engine.engine import AskRequest, Engine, EngineSettings
from magicpig_cli.engine.events import Finished, Prefilled, Prompted, Token
from magicpig_cli.engine.prefill import prefill
from magicpig_cli.engine.step import make_step
from magicpig_cli.lsh.params import LshParams

NOTES = Path(__file__).parents[2] / "samples" / "notes.md"


@pytest.fixture(scope="module")
def engine(embedded_folder) -> Engine:
    return Engine.load(EngineSettings(model=str(embedded_folder), attention="lsh"))


@pytest.fixture(scope="module")
def prompt_ids(engine) -> list[int]:
    return engine.loaded.tokenizer(NOTES.read_text(encoding="utf-8")).input_ids


def _prefilled(engine: Engine, token_ids: list[int], chunk: int) -> tuple[Session, torch.Tensor]:
    session = Session(Dense(), engine.n_layers, len(token_ids) + 32, engine.device)
    reading = prefill(engine.loaded.model, session, token_ids, chunk)
    with torch.inference_mode():
        while True:
            try:
                next(reading)
            except StopIteration as done:
                return session, done.value


def test_prefill_in_any_chunks_gives_the_logits_of_an_ordinary_pass(engine, prompt_ids, embedded_folder):
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(embedded_folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt_ids])).logits[0, -1]
    for chunk in (37, 512):
        _, logits = _prefilled(engine, prompt_ids, chunk)
        # Keys and values are rounded to bf16 (8 bits): a per cent of the logits' spread.
        assert (logits - expected).abs().max() < 0.01 * (expected.max() - expected.min())
        assert logits.argmax() == expected.argmax()


def test_certain_inclusion_equals_dense(engine, prompt_ids):
    dense, logits = _prefilled(engine, prompt_ids, 512)
    # One bit and 64 tables: whatever stands at less than 170 degrees is sampled, with u = 1.
    sampled = dense.beside(Lsh(LshParams(n_bits=1, n_tables=64), dense_layers=()))
    steps = [make_step(engine.loaded.model, session) for session in (dense, sampled)]
    token = int(logits.argmax())
    with torch.inference_mode():
        for _ in range(8):
            exact, certain = (step(token) for step in steps)
            assert sampled.stats.keys_touched >= 0.999 * sampled.stats.keys_offered
            spread = float(exact.max() - exact.min())
            assert float((exact - certain).abs().max()) < 0.005 * spread
            token = int(exact.argmax())


def _answer(engine: Engine, question: str, **wishes: object) -> tuple[str, dict[type, object]]:
    document = Document(source="notes.md", text=NOTES.read_text(encoding="utf-8"), encoding="utf-8")
    events, text = {}, ""
    for event in engine.generate(AskRequest([document], question, max_tokens=12, **wishes)):  # type: ignore[arg-type]
        events[type(event)] = event
        text += event.text if isinstance(event, Token) else event.tail if isinstance(event, Finished) else ""
    return text, events


def test_a_second_question_prefills_only_itself_and_answers_alike(engine, embedded_folder):
    first, _ = _answer(engine, "Who takes the minutes?")
    _answer(engine, "What is on the agenda?")
    again, events = _answer(engine, "Who takes the minutes?")
    assert again == first
    assert events[Prompted].reused_tokens > 300
    assert events[Prefilled].computed_tokens < 40
    fresh = Engine.load(EngineSettings(model=str(embedded_folder), attention="lsh"))
    assert _answer(fresh, "Who takes the minutes?")[0] == first


def test_a_seed_repeats_a_drawn_answer(engine):
    drawn = [_answer(engine, "Describe the day.", temperature=1.0, seed=5)[0] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert _answer(engine, "Describe the day.", temperature=1.0, seed=6)[0] != drawn[0]


def test_figures_of_an_answer_are_measured(engine):
    _, events = _answer(engine, "Who takes the minutes?")
    finished = events[Finished]
    assert 0.0 < finished.sampled_share < 1.0
    assert 0.0 < finished.estimated_error < 1.0
    assert 0.0 < finished.attention_ms_per_token < finished.decode_ms_per_token
    assert np.isfinite(finished.first_token_s)
