"""Citations through the engine: asking for them changes nothing else, and their places are real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import lines, small_model

from magicpig_cli.attention.base import Weighed
from magicpig_cli.attention.dense import Dense
from magicpig_cli.attention.registry import METHODS, WITHOUT_BUDGET
from magicpig_cli.documents import Document
from magicpig_cli.engine.citing import Citing, LayerLooks
from magicpig_cli.engine.conversation import Conversation
from magicpig_cli.engine.engine import AskRequest, Engine, EngineSettings
from magicpig_cli.engine.events import Cited, Event, Finished, Token
from magicpig_cli.engine.prompt import PromptBuilder

DOCUMENTS = [
    Document("log.txt", lines(12), "utf-8", heading="==> log.txt <=="),
    Document("more.txt", lines(8, 50), "utf-8", heading="==> more.txt <=="),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("small") / "model")


def answer(folder: Path, passages: int, **settings: Any) -> list[Event]:
    engine = Engine.load(EngineSettings(model=str(folder), offline=True, device="cpu", **settings))
    return list(engine.generate(AskRequest(DOCUMENTS, "Which pump?", max_tokens=12, passages=passages)))


def of(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("name", METHODS)
def test_citing_changes_no_token(folder: Path, name: str) -> None:
    plain, citing = answer(folder, 0, attention=name), answer(folder, 3, attention=name)
    assert [t.id for t in of(plain, Token)] == [t.id for t in of(citing, Token)]
    assert of(plain, Finished)[0].sampled_share == of(citing, Finished)[0].sampled_share
    assert of(plain, Cited) == []
    (cited,) = of(citing, Cited)
    assert citing.index(cited) > citing.index(of(citing, Finished)[0])
    texts = {document.source: document.text for document in DOCUMENTS}
    assert 1 <= len(cited.passages) <= 3
    for passage in cited.passages:
        text = texts[passage.source]
        assert " ".join(text[passage.start : passage.end].split()) == passage.quotation
        assert text.count("\n", 0, passage.start) + 1 == passage.first_line
    shares = [passage.share for passage in cited.passages]
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[-1] <= sum(shares) <= 1 + 1e-9


@pytest.mark.parametrize("name", [name for name in METHODS if name not in WITHOUT_BUDGET])
def test_with_all_keys_every_method_cites_as_exact_attention(folder: Path, name: str) -> None:
    """The layers that a method leaves exact are not watched, so exact attention is told to leave them too."""
    cited = of(answer(folder, 3, attention=name, budget=1.0, dense_layers=()), Cited)[0]
    exact = of(answer(folder, 3, attention="dense"), Cited)[0]
    assert [p.quotation for p in cited.passages] == [p.quotation for p in exact.passages]
    assert [p.share for p in cited.passages] == pytest.approx([p.share for p in exact.passages], rel=1e-2)


def test_an_answer_of_one_token_cites_what_the_prompt_looked_at(folder: Path) -> None:
    engine = Engine.load(EngineSettings(model=str(folder), offline=True, device="cpu"))
    request = AskRequest(DOCUMENTS, "Which pump?", max_tokens=1, passages=2)
    assert len(of(list(engine.generate(request)), Cited)[0].passages) == 2


def by_hand(steps: list[np.ndarray]) -> np.ndarray:
    """The rule from all weights at once: (steps, n_heads, n) to (n,)."""
    every = np.stack(steps)
    highest = every.max(axis=0)
    others = (every.sum(axis=0) - highest) / max(1, len(steps) - 1)
    return np.asarray(((highest - others) ** 2).sum(axis=0))


@pytest.mark.parametrize("n_steps", [1, 2, 512])
def test_looks_are_folded_as_if_all_weights_were_kept(n_steps: int) -> None:
    """Three heads in groups of two and one, each step with other keys; so many that they are folded often."""
    random, n = np.random.default_rng(n_steps), 600
    looks, steps = LayerLooks(n), []
    for _ in range(n_steps):
        step = np.zeros((3, n))
        tokens = [np.sort(random.choice(n, 300, replace=False)) for _ in range(2)]
        weights = [random.dirichlet(np.full(300, 0.1), size).astype(np.float32) for size in (2, 1)]
        step[:2, tokens[0]], step[2:, tokens[1]] = weights
        looks.add(tokens, weights)
        steps.append(np.where(step >= 0.01 * n / 4000, step, 0))
    assert looks.scores() == pytest.approx(by_hand(steps))
    if n_steps == 512:
        assert looks.n_kept <= 3 * n + (1 << 16)


def test_what_a_head_looks_at_in_every_step_gives_way_to_a_single_look() -> None:
    looks = LayerLooks(50)
    for number in range(20):
        looked = [0, 30] if number == 7 else [0]
        weights = np.array([[0.6, 0.3]] if number == 7 else [[0.9]], np.float32)
        looks.add([np.array(looked)], [weights])
    scores = looks.scores()
    assert scores.argmax() == 30
    assert scores[30] == pytest.approx(0.3**2)


def test_of_one_step_the_heaviest_counts_most() -> None:
    looks = LayerLooks(50)
    looks.add([np.array([3, 9])], [np.array([[0.2, 0.5], [0.1, 0.5]], np.float32)])
    assert looks.scores()[[3, 9]] == pytest.approx([0.05, 0.5])


def test_turns_of_a_chat_cite_the_documents(folder: Path) -> None:
    engine = Engine.load(EngineSettings(model=str(folder), offline=True, device="cpu"))
    talk = Conversation(engine, AskRequest(DOCUMENTS, "", max_tokens=8, passages=1))
    for question in ("Which pump?", "And which line?"):
        (cited,) = of(list(talk.ask(question)), Cited)
        assert cited.passages[0].source in ("log.txt", "more.txt")


def test_an_interrupted_answer_leaves_nobody_watching(folder: Path) -> None:
    engine = Engine.load(EngineSettings(model=str(folder), offline=True, device="cpu"))
    events = engine.generate(AskRequest(DOCUMENTS, "Which pump?", passages=3))
    for event in events:
        if isinstance(event, Token):
            break
    session = engine._reading.session  # type: ignore[union-attr]
    assert session.watcher is not None
    events.close()  # type: ignore[attr-defined]
    assert session.watcher is None


def test_the_planted_place_is_found_from_its_weights(embedded_tokenizer: Any) -> None:
    """Tokens to characters, with a heading before each text and markers that are cut in the middle."""
    texts = [
        "A <|im_end|> stands here. The word is heron, caf\u00e9 \U0001f426.",
        "Nothing else is written there.",
    ]
    documents = [Document(f"{i}.txt", text, "utf-8", heading=f"==> {i} <==") for i, text in enumerate(texts)]
    prompts = PromptBuilder(embedded_tokenizer, "model", 8192)
    prompt = prompts.build(documents, "Which word?", None)
    for number, word in ((0, "heron"), (0, "im_end"), (1, "written")):
        citing = Citing(prompts, documents, prompt, Dense())
        starts = prompts.token_starts(documents[number])
        assert starts == sorted(starts)
        assert len(starts) == prompt.documents[number].tokens
        at = texts[number].index(word)
        token = max(i for i, start in enumerate(starts) if start <= at)
        position = prompt.prefix_tokens - prompt.document_tokens + token
        position += 0 if number == 0 else prompt.documents[0].tokens or 0
        weighed = Weighed(
            np.array([0, position, prompt.prefix_tokens]), np.array([[0.5, 0.4, 0.1]], np.float32)
        )
        for layer in range(30):
            if citing.wants(layer):
                citing.attended(layer, [weighed])
        (passage,) = citing.cited(1).passages
        assert word in passage.quotation
        assert passage.source == f"{number}.txt"
