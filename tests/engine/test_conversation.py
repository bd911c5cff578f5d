"""Turns of a conversation: each begins with the tokens of the one before, and nothing is read twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small import lines, small_model

from magicpig_cli.documents import Document
from magicpig_cli.engine.conversation import Conversation
from magicpig_cli.engine.engine import AskRequest, Engine, EngineSettings
from magicpig_cli.engine.events import Event, Finished, Prefilled, PrefillProgress, Prompted, Token
from magicpig_cli.errors import DoesNotFit
from magicpig_cli.models.load import load_model

TEXT = lines(18)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


def load(model: Path, **changes: Any) -> Engine:
    return Engine.load(EngineSettings(**({"model": str(model), "offline": True, "device": "cpu"} | changes)))


def conversation(engine: Engine, max_tokens: int = 80) -> Conversation:
    return Conversation(engine, AskRequest([Document("log.txt", TEXT, "utf-8")], "", max_tokens=max_tokens))


def of(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize(("indexed", "max_tokens"), [(False, 80), (True, 8)])
def test_ten_turns_read_every_token_once(
    indexed: bool, max_tokens: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every token of the last prompt was read once or generated, in some turn; long answers enter the tables,
    so the store and its tables grow turn by turn. With an index not even the document is read."""
    monkeypatch.setenv("MAGICPIG_CACHE", str(tmp_path))
    documents = [Document("log.txt", TEXT, "utf-8")]
    if indexed:
        list(load(model, cache=True).read(documents))
    engine = load(model, cache=True)
    talk = Conversation(engine, AskRequest(documents, "", max_tokens=max_tokens))
    # As the command does: the document first, then the questions.
    reading = list(engine.read(documents))
    document_tokens = of(reading, Prompted)[0].prompt_tokens
    assert of(reading, Prefilled)[0].computed_tokens == (0 if indexed else document_tokens)
    known, n_read, n_kept, n_unread = document_tokens, 0, 0, 0
    for turn in range(10):
        events = list(talk.ask(f"And what about pump {turn}?"))
        prompted, prefilled = of(events, Prompted)[0], of(events, Prefilled)[0]
        assert known - prompted.reused_tokens == n_unread
        assert prefilled.computed_tokens == prompted.prompt_tokens - prompted.reused_tokens < 80
        # No layer sees a token before the first new one.
        assert all(
            prompted.reused_tokens < event.tokens_done <= prompted.prompt_tokens
            for event in of(events, PrefillProgress)
        )
        n_answered = len(of(events, Token))
        known = prompted.prompt_tokens + n_answered
        n_read += prefilled.computed_tokens
        # The last token of an answer that is cut off has been through no layer yet, so it is read with what
        # follows; one that ends by itself has been, for the stop token to come of it.
        n_unread = 1 if n_answered and of(events, Finished)[0].reason == "length" else 0
        n_kept += n_answered - n_unread
    assert len(talk.turns) == 10
    assert document_tokens + n_read + n_kept == known - n_unread
    assert (n_kept > 512) == (max_tokens == 80)  # so that some of it has entered the tables


def test_a_turn_answers_as_if_all_had_been_read_at_once(model: Path) -> None:
    """Dense attention: the tokens in the store are those that a fresh reading of the prompt would put there.

    The kernels that decode and those that prefill round differently, so a fresh model's greedy choice may
    differ at a tie; the small model's first answer tokens do not.
    """
    talk = conversation(load(model, attention="dense"), max_tokens=8)
    for question in ("Which pump?", "How long?"):
        list(talk.ask(question))
    history = talk.turns
    third = of(list(talk.ask("And then?")), Token)
    request = AskRequest([Document("log.txt", TEXT, "utf-8")], "And then?", history=history, max_tokens=8)
    fresh = list(load(model, attention="dense").generate(request))
    assert of(fresh, Prompted)[0].reused_tokens == 0
    assert [token.id for token in of(fresh, Token)] == [token.id for token in third]


def test_a_stopped_answer_counts_as_far_as_it_came(model: Path) -> None:
    talk = conversation(load(model))
    events = talk.ask("Which pump?")
    seen = 0
    for event in events:
        seen += isinstance(event, Token)
        if seen == 3:
            break
    events.close()
    assert [len(turn.answer_ids) for turn in talk.turns] == [3]
    following = list(talk.ask("Go on."))
    prompted = of(following, Prompted)[0]
    assert of(following, Prefilled)[0].computed_tokens < 80
    assert prompted.reused_tokens > len(TEXT)


def test_after_a_reset_the_document_is_still_read(model: Path) -> None:
    talk = conversation(load(model))
    first = list(talk.ask("Which pump?"))
    list(talk.ask("How long?"))
    talk.reset()
    again = list(talk.ask("Which pump?"))
    assert of(again, Prompted)[0].prompt_tokens == of(first, Prompted)[0].prompt_tokens
    assert of(again, Prefilled)[0].computed_tokens < 80
    assert [token.id for token in of(again, Token)] == [token.id for token in of(first, Token)]


def test_a_conversation_that_fills_the_context_says_what_to_do(tmp_path: Path) -> None:
    model = small_model(tmp_path, max_position_embeddings=1200)
    talk = conversation(load(model), max_tokens=100)
    question = "Which pump ran the longest of them all?"

    def ask_on() -> None:
        # A random model ends an answer where it likes, so the number of turns that fit is not known.
        for _ in range(40):
            list(talk.ask(question))

    with pytest.raises(DoesNotFit, match="1,200; forget the turns with /reset"):
        ask_on()
    talk.reset()
    assert of(list(talk.ask("Which pump?")), Token)


def test_a_turn_looks_as_the_template_would_have_it(model: Path) -> None:
    """The joined pieces are what the template gives for the whole conversation."""
    engine = load(model)
    tokenizer = load_model(model, engine.device).tokenizer
    talk = conversation(engine, max_tokens=3)
    list(talk.ask("One?"))
    history = talk.turns
    answer = tokenizer.decode(history[0].answer_ids)
    prompt = engine._prompts.build([Document("log.txt", TEXT, "utf-8")], "Two?", None, history)
    expected = tokenizer.apply_chat_template(
        [
            {"role": "user", "content": f"{TEXT}\n\nQuestion: One?"},
            {"role": "assistant", "content": "ANSWER"},
            {"role": "user", "content": "Two?"},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert tokenizer.decode(prompt.token_ids) == expected.replace("ANSWER", answer)
