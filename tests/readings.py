"""Requests to an engine with a cache, and their events sorted: what tests of the index share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from small import lines

from magicpig_cli.documents import Document
from magicpig_cli.engine.engine import AskRequest, Engine
from magicpig_cli.engine.events import Event, Notice, Prefilled, Prompted, Token

QUESTION = "Which pump ran longest?"
TEXT = lines(18)
CHUNK = 256


class Run:
    """The events of one request, sorted."""

    def __init__(self, events: Iterator[Event]) -> None:
        self.events = list(events)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def answer(self) -> list[int]:
        return [token.id for token in self.of(Token)]

    @property
    def prompted(self) -> Prompted:
        return self.of(Prompted)[0]

    @property
    def computed(self) -> int:
        return self.of(Prefilled)[0].computed_tokens

    @property
    def notices(self) -> list[str]:
        return [notice.text for notice in self.of(Notice)]


def request(*texts: str, question: str = QUESTION) -> AskRequest:
    documents = [Document(f"{i}.txt", text, "utf-8") for i, text in enumerate(texts)]
    return AskRequest(documents, question, max_tokens=6)


def ask(engine: Engine, *texts: str, question: str = QUESTION) -> Run:
    return Run(engine.generate(request(*texts, question=question)))


def index_folder(cache: Path) -> Path:
    (folder,) = [path for path in cache.iterdir() if not path.name.startswith(".")]
    return folder
