"""Tokens of each part of a document, which the outline and the refusal of a long document speak from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magicpig_cli.documents import Document, Part


@dataclass(frozen=True, slots=True)
class PartSize:
    """A part and the tokens that it has when it is read by itself."""

    part: Part
    tokens: int


def part_sizes(
    document: Document, parts: Sequence[Part], count: Callable[[str], int]
) -> tuple[PartSize, ...]:
    """Sizes of parts of a document, each counted as the text that would be read.

    Parameters
    ----------
    document : Document
    parts : sequence of Part
    count : callable
        Tokens of a text.
    """
    return tuple(PartSize(part, count(document.text[part.start : part.end])) for part in parts)
