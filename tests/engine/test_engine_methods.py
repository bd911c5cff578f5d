"""Every attention method answers through the engine, and with all keys it answers as exact attention does."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import lines, small_model

from magicpig_cli.attention.registry import METHODS, WITHOUT_BUDGET
from magicpig_cli.documents import Document
from magicpig_cli.engine.engine import AskRequest, Engine, EngineSettings
from magicpig_cli.engine.events import Finished, Prompted, Token


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("small") / "model")


def answer(
    folder: Path, method: str, budget: float | None, tolerance: float | None = None
) -> tuple[list[int], Finished, Prompted]:
    settings = EngineSettings(
        model=str(folder), offline=True, attention=method, budget=budget, tolerance=tolerance
    )
    engine = Engine.load(settings)
    document = Document("log.txt", lines(12), "utf-8")
    events = list(engine.generate(AskRequest([document], "Which pump?", max_tokens=24)))
    (finished,) = (event for event in events if isinstance(event, Finished))
    (prompted,) = (event for event in events if isinstance(event, Prompted))
    return [event.id for event in events if isinstance(event, Token)], finished, prompted


@pytest.mark.parametrize("name", [name for name in METHODS if name not in WITHOUT_BUDGET])
def test_with_all_keys_the_answer_is_that_of_exact_attention(folder: Path, name: str) -> None:
    tokens, finished, prompted = answer(folder, name, 1.0)
    assert tokens == answer(folder, "dense", None)[0]
    assert finished.sampled_share == 1.0
    assert prompted.attention.method == name


@pytest.mark.parametrize("name", [name for name in METHODS if name != "dense"])
def test_the_share_that_was_read_is_told(folder: Path, name: str) -> None:
    _, finished, prompted = answer(folder, name, None if name in WITHOUT_BUDGET else 0.1)
    assert finished.sampled_share is not None
    assert 0.01 < finished.sampled_share < (0.5 if name.startswith("lsh") else 0.2)
    assert prompted.attention.dense_layers == (0,)


def test_within_a_tiny_tolerance_the_answer_is_that_of_exact_attention(folder: Path) -> None:
    tokens, finished, prompted = answer(folder, "lsh", None, 1e-9)
    assert tokens == answer(folder, "dense", None)[0]
    assert prompted.attention.tolerance == 1e-9
    assert finished.exact_share == 1.0
    assert finished.estimated_error == 0.0
    assert finished.sampled_share is not None
    assert finished.sampled_share > 1.0  # the sample and then everything


def test_within_a_huge_tolerance_the_answer_is_the_sampled_one(folder: Path) -> None:
    tokens, finished, _ = answer(folder, "lsh", None, 1e9)
    plain_tokens, plain, plain_prompted = answer(folder, "lsh", None)
    assert tokens == plain_tokens
    assert (finished.sampled_share, finished.estimated_error) == (plain.sampled_share, plain.estimated_error)
    assert (finished.exact_share, finished.resampled_share) == (0.0, 0.0)
    assert plain.exact_share is None
    assert plain_prompted.attention.tolerance is None
