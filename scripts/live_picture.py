"""Makes the pictures of the live screen in docs/ from a real run: the model answers, its events are drawn.

Usage: python scripts/live_picture.py [SOURCE QUESTION]. Takes as long as the answer does.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from magicpig_cli.documents import read_sources
from magicpig_cli.engine.engine import AskRequest, Engine, EngineSettings
from magicpig_cli.engine.events import Event, Token
from magicpig_cli.views.glyphs import UNICODE
from magicpig_cli.views.layout import frame
from magicpig_cli.views.screen import Row, Size, Span
from magicpig_cli.views.track import Track
from magicpig_cli.views.wrap import Wrapped

DOCS = Path(__file__).parent.parent / "docs"
SAMPLE = "samples/keepers-book.md"
QUESTION = "What is the name of the kitchen cat, and what is the password of the north gate?"
ANSWER_TOKENS = 120
# File and screen size: an ordinary terminal, a narrow one, a wide one.
PICTURES = {"live.svg": Size(100, 24), "live-narrow.svg": Size(48, 24), "live-wide.svg": Size(150, 24)}
STYLES = {"bold": "bold", "title": "bold", "dim": "dim", "accent": "cyan", "good": "green", "": ""}


def record(source: str, question: str) -> list[Event]:
    """The events of one real answer."""
    events: list[Event] = []
    engine = Engine.load(EngineSettings(), events.append)
    documents = read_sources([source], None)
    events.extend(engine.generate(AskRequest(documents, question, max_tokens=ANSWER_TOKENS)))
    return events


def picture(events: Sequence[Event], size: Size) -> str:
    """SVG of the screen when the answer is all but finished."""
    track, answer = Track(), Wrapped(80)
    last_token = max(i for i, event in enumerate(events) if isinstance(event, Token))
    for event in events[:last_token]:
        answer.feed(track.fold(event))
    console = Console(
        file=io.StringIO(), record=True, width=size.columns, force_terminal=True, color_system="truecolor"
    )
    for row in frame(track, answer, size, UNICODE, 0.0, 0.0):
        console.print(as_text(row), soft_wrap=True, highlight=False)
    return console.export_svg(title="magicpig ask")


def as_text(row: Row) -> Text:
    """A row with its second part moved to its column."""
    text = spans_as_text(row.left)
    if row.right:
        text.append(" " * max(0, row.column - text.cell_len))
        text.append_text(spans_as_text(row.right))
    return text


def spans_as_text(spans: Sequence[Span]) -> Text:
    return Text.assemble(*((span.text, STYLES[span.style]) for span in spans))


def main(source: str = SAMPLE, question: str = QUESTION) -> None:
    events = record(source, question)
    for name, size in PICTURES.items():
        (DOCS / name).write_text(picture(events, size), encoding="utf-8")
        print(DOCS / name)


if __name__ == "__main__":
    main(*sys.argv[1:3])
