"""Chapters that are headed by a number: `IV. THE STORM`, `ADVENTURE II. THE LEAGUE`, or `IV` on a line alone.

Lists, captions and page numbers look much the same, so a head counts only in a row that begins with one,
goes up by one, and has text behind its heads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from magicpig_cli.documents.parts import Mark
from magicpig_cli.documents.roman import roman_value

_HEAD = re.compile(
    r"(?P<word>[^\W\d_]{3,20})?\s*\b(?P<number>[IVXLC]{1,8}|\d{1,3})\b(?P<sign>[.:)]?)(?:\s+(?P<title>\S.{0,80}))?"
)
# A lone C is rather an initial than a hundredth chapter.
_MOST_ROMAN = 99
_CAPTIONS = {"figure", "fig", "table", "plate", "image", "page", "abbildung", "tabelle", "seite", "bild"}
_FEWEST = 3
# Items of a list are shorter; half of a row's chapters hold at least so many characters.
_SHORT_BODY = 300


@dataclass(frozen=True, slots=True)
class _Head:
    number: int
    title: str
    start: int
    body: int
    titled: bool


def numbered_marks(text: str) -> list[Mark]:
    """Numbered chapters, outermost those with titles; none where the numbers make no row.

    A head stands between empty lines. Bare numbers are Roman and in capitals, since Arabic ones are more
    often those of pages; below chapters with titles they are one level deeper.
    """
    heads = _heads(text)
    titled = _rows([head for head in heads if head.titled], text)
    bare = _rows([head for head in heads if not head.titled], text)
    below = 2 if titled else 1
    marks = [Mark(h.title, 1, h.start, "chapter") for h in titled]
    marks += [Mark(h.title, below, h.start, "chapter") for h in bare]
    return sorted(marks, key=lambda mark: mark.start)


def _heads(text: str) -> list[_Head]:
    heads = []
    lines = text.splitlines(keepends=True)
    at = 0
    for i, line in enumerate(lines):
        stripped = line.strip()
        match = _HEAD.fullmatch(stripped) if 0 < len(stripped) <= 100 and _is_alone(lines, i) else None
        head = None if match is None else _head(match, at, at + len(line))
        if head is not None:
            heads.append(head)
        at += len(line)
    return heads


def _is_alone(lines: Sequence[str], i: int) -> bool:
    return not (i and lines[i - 1].strip()) and not (i + 1 < len(lines) and lines[i + 1].strip())


def _head(match: re.Match[str], start: int, body: int) -> _Head | None:
    number, word, title = match["number"], match["word"] or "", match["title"] or ""
    value = int(number) if number.isdigit() else roman_value(number) or 0
    if not number.isdigit() and value > _MOST_ROMAN:
        return None
    if not value or word.lower() in _CAPTIONS or (word and not word[0].isupper()):
        return None
    if not title and not word and number.isdigit():
        return None
    if title and not _is_title(title, bool(match["sign"])):
        return None
    return _Head(value, match[0], start, body, bool(title or word))


def _is_title(title: str, signed: bool) -> bool:
    """In capitals, or, behind `IV.`, with capitals at its longer words; no sentence."""
    if not any(letter.isalpha() for letter in title) or title.endswith((",", ";", ":")):
        return False
    if title.upper() == title:
        return True
    longer = [word for word in re.findall(r"\w+", title) if len(word) > 3]
    return signed and not title.endswith(".") and title[0].isupper() and all(w[0].isupper() for w in longer)


def _rows(heads: Sequence[_Head], text: str) -> list[_Head]:
    """Heads that count up from one, row by row, and have text behind them."""
    rows: list[list[_Head]] = []
    for head in heads:
        if head.number == 1:
            rows.append([head])
        elif rows and head.number == rows[-1][-1].number + 1:
            rows[-1].append(head)
    return [head for row in rows if len(row) >= _FEWEST and _has_bodies(row, text) for head in row]


def _has_bodies(row: Sequence[_Head], text: str) -> bool:
    ends = [*(head.start for head in row[1:]), len(text)]
    lengths = sorted(len(text[head.body : end].strip()) for head, end in zip(row, ends, strict=True))
    return lengths[len(lengths) // 2] >= _SHORT_BODY
