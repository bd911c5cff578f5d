"""From weights of tokens to places of documents: the passages that an answer rests on.

A passage is a sentence, or a few that stand together. Its place is told as people look it up: file, line,
page, section, and a short quotation.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from magicpig_cli.documents import Document
from magicpig_cli.documents.parts import Places, pages, sections
from magicpig_cli.engine.events import Passage

# A sentence ends behind its mark and closing quotes, where blanks follow.
_SENTENCE_END = re.compile(r"[.!?\u2026][\"')\]\u201d\u2019\u00bb*_]*\s+|[\u3002\uff01\uff1f]\s*")
# So ends a paragraph: an empty line, or the end of a page.
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n\s*|\f\s*")
# A line ends for good before a heading, an item or a row of a table, and behind a heading.
_BLOCK = re.compile(r"\n(?=[ \t]*(?:[-*+#>|]|\d{1,4}[.)][ \t]))|^[ \t]*#[^\n]*\n", re.MULTILINE)
# Longer than this and it is no sentence but a list, a table or code: every line counts for itself.
_LONGEST = 400
# Shorter than this and it is no sentence but `Mr.` or `No.`: it belongs to what follows.
_SHORTEST = 15
# Passages that stand together become one up to this length, in characters.
_JOINED = 400
# Characters of a quotation.
_QUOTED = 160


@dataclass(frozen=True, slots=True)
class _Span:
    """A passage in the making: a document's number, characters and paragraph of its text, its score."""

    document: int
    start: int
    end: int
    paragraph: int
    score: float


def find_passages(
    documents: Sequence[Document],
    starts: Sequence[Sequence[int]],
    scores: Sequence[np.ndarray],
    count: int,
) -> tuple[Passage, ...]:
    """The passages with the highest scores, the highest first.

    Parameters
    ----------
    documents : sequence of Document
    starts : sequence of sequence of int
        For each document the character at which each of its tokens begins, ascending.
    scores : sequence of numpy.ndarray
        For each document the score of each of its tokens, not negative.
    count : int
        Passages to give at most; fewer if only fewer have a score.
    """
    spans: list[_Span] = []
    for number, (document, own, score) in enumerate(zip(documents, starts, scores, strict=True)):
        spans += _scored(number, document.text, np.asarray(own), score)
    total = sum(span.score for span in spans)
    chosen = _joined(spans, count)
    places = {span.document: Places(documents[span.document].text) for span in chosen}
    peaks = [_peak(span, starts[span.document], scores[span.document]) for span in chosen]
    return tuple(
        _passage(documents[span.document], span, places[span.document], peak, span.score / total)
        for span, peak in zip(chosen, peaks, strict=True)
    )


def boundaries(text: str) -> list[int]:
    """The characters at which sentences begin, ascending, the first 0; where there are none, lines."""
    ends = (m.end() for rule in (_SENTENCE_END, _PARAGRAPH_END, _BLOCK) for m in rule.finditer(text))
    ordered = sorted({0, *ends} - ({len(text)} if text else set()))
    result: list[int] = []
    for start, end in zip(ordered, [*ordered[1:], len(text)], strict=True):
        if result and start - result[-1] < _SHORTEST and "\n" not in text[result[-1] : start]:
            continue  # what began before is too short to end here
        result.append(start)
        if end - start > _LONGEST:
            result += [start + m.end() for m in re.finditer(r"\n", text[start:end]) if start + m.end() < end]
    return result


def _scored(number: int, text: str, starts: np.ndarray, scores: np.ndarray) -> list[_Span]:
    """The sentences of one document that have a score."""
    cuts = boundaries(text)
    # A token belongs to the sentence in which it ends, since many begin with the blank before a word.
    ends = np.append(starts[1:], len(text))
    owner = np.searchsorted(cuts, np.maximum(ends - 1, starts), side="right") - 1
    inside = (ends > 0) & (owner >= 0)
    sums = np.bincount(owner[inside], weights=scores[inside], minlength=len(cuts))
    paragraphs = [m.end() for m in _PARAGRAPH_END.finditer(text)]
    bounds = [*cuts, len(text)]
    return [
        _Span(number, bounds[i], bounds[i + 1], bisect_right(paragraphs, bounds[i + 1] - 1), float(sums[i]))
        for i in np.flatnonzero(sums > 0)
    ]


def _joined(spans: Sequence[_Span], count: int) -> list[_Span]:
    """The best spans; one that stands beside a better one becomes part of it."""
    chosen: list[_Span] = []
    for span in sorted(spans, key=lambda s: -s.score):
        beside = [i for i, other in enumerate(chosen) if _are_neighbours(span, other)]
        if beside:
            other = chosen[beside[0]]
            start, end = min(span.start, other.start), max(span.end, other.end)
            chosen[beside[0]] = replace(span, start=start, end=end, score=span.score + other.score)
        elif len(chosen) == count:
            break
        else:
            chosen.append(span)
    return sorted(chosen, key=lambda s: -s.score)


def _are_neighbours(a: _Span, b: _Span) -> bool:
    alike = (a.document, a.paragraph) == (b.document, b.paragraph)
    touch = a.end == b.start or b.end == a.start
    return alike and touch and max(a.end, b.end) - min(a.start, b.start) <= _JOINED


def _peak(span: _Span, starts: Sequence[int], scores: np.ndarray) -> int:
    """The character at which the span's heaviest token begins."""
    first, last = bisect_right(starts, span.start) - 1, bisect_right(starts, span.end - 1)
    first = max(first, 0)
    return max(span.start, starts[first + int(np.argmax(scores[first:last]))])


def _passage(document: Document, span: _Span, places: Places, peak: int, share: float) -> Passage:
    text, part = document.text, document.part
    start, end = _stripped(text, span.start, span.end)
    first_line, last_line = places.line_at(start), places.line_at(max(start, end - 1))
    lines_before = part.first_line - 1 if part else 0
    characters_before = part.start if part else 0
    section = [s for s in sections(document.parts) if s.start <= start < s.end]
    return Passage(
        source=document.source,
        start=start + characters_before,
        end=end + characters_before,
        first_line=first_line + lines_before,
        last_line=last_line + lines_before,
        first_page=_page_at(document, start),
        last_page=_page_at(document, max(start, end - 1)),
        section=section[-1].title if section else None,
        quotation=quotation(text, start, end, min(max(peak, start), end - 1)),
        share=share,
    )


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without blanks at its ends, unless it is all blank."""
    piece = text[start:end]
    begin = start + len(piece) - len(piece.lstrip())
    return (begin, start + len(piece.rstrip())) if piece.strip() else (start, end)


def _page_at(document: Document, character: int) -> int | None:
    """The page of the source that a character is on; None where it has none.

    A part that was cut within pages keeps only its whole ones; before and behind them are its first and last.
    """
    within, part = pages(document.parts), document.part
    number = bisect_right([page.start for page in within], character)
    if number and (character < within[number - 1].end or part is None):
        return within[number - 1].first_page
    if part is None:
        return None
    return part.last_page if number else part.first_page


def quotation(text: str, start: int, end: int, peak: int) -> str:
    """A span on one line; a long one is cut between words around its heaviest place."""
    if end - start <= _QUOTED:
        return " ".join(text[start:end].split())
    first = max(start, min(peak - _QUOTED // 2, end - _QUOTED))
    last = min(end, first + _QUOTED)
    head, tail = text[first:peak], text[peak:last]
    if first > start:
        head = "... " + (re.split(r"\s", head, maxsplit=1)[-1])
    if last < end:
        tail = (re.split(r"\s(?=\S*$)", tail, maxsplit=1)[0]) + " ..."
    return " ".join((head + tail).split())
