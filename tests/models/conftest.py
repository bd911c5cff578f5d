"""A cache of its own for every test, and resolving that remembers what it was told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from magicpig_cli.models.sources import ModelSource, resolve


@dataclass
class Resolver:
    """`resolve` with its progress and notices kept."""

    notices: list[str] = field(default_factory=list)
    progress: list[tuple[str, int, int | None]] = field(default_factory=list)

    def __call__(self, name: str, **changes: Any) -> ModelSource:
        arguments: dict[str, Any] = {"offline": False, "device_kind": "cpu", **changes}
        return resolve(
            str(name),
            progress=lambda *step: self.progress.append(step),
            notice=self.notices.append,
            **arguments,
        )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MAGICPIG_CACHE", str(folder))
    return folder


@pytest.fixture
def found(cache: Path) -> Resolver:
    return Resolver()
