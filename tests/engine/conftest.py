"""Engines of a small model, as separate runs of the command would have them, and a cache of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from readings import CHUNK
from small import small_model

from magicpig_cli.engine.engine import Engine, EngineSettings


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAGICPIG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "indexes"


@pytest.fixture
def load(model: Path, cache: Path) -> Iterator[Callable[..., Engine]]:
    """Engines as separate runs of the command would have them."""
    engines: list[Engine] = []

    def load_engine(**changes: Any) -> Engine:
        settings = {
            "model": str(model),
            "cache": True,
            "chunk_tokens": CHUNK,
            "offline": True,
            "device": "cpu",
        }
        engines.append(Engine.load(EngineSettings(**(settings | changes))))
        return engines[-1]

    yield load_engine
    for engine in engines:
        engine.close()
