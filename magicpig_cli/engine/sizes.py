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


def longest_beginning(document: Document, starts: Sequence[int], room: int) -> str | None:
    """The option that reads as much of a document as fits, from its first line: whole pages, or lines.

    Parameters
    ----------
    document : Document
    starts : sequence of int
        The character of its text at which each token begins.
    room : int
        Tokens that fit.

    Returns
    -------
    str or None
        Such as `--lines 1:690`, counted in the source; None if not even its first line fits.
    """
    end = starts[room] if room < len(starts) else len(document.text)
    pages = [part for part in document.parts if part.kind == "page" and part.end <= end]
    if pages and pages[-1].last_page is not None:
        return f"--pages {pages[0].first_page}-{pages[-1].last_page}"
    whole_lines = document.text.count("\n", 0, max(0, end))
    first = 1 if document.part is None else document.part.first_line
    return f"--lines {first}:{first + whole_lines - 1}" if whole_lines else None
