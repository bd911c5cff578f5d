"""What tests of formats look at: the sections of a document."""

from __future__ import annotations

from magicpig_cli.documents import Document as Read


def outline(document: Read) -> list[tuple[str, int, str]]:
    """Title, level and first line of each section."""
    return [
        (part.title, part.level, document.text[part.start :].splitlines()[0])
        for part in document.parts
        if part.kind != "page"
    ]
