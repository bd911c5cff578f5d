"""Reading only a part that a person asked for: a section by its title, pages, or lines.

Nothing is chosen here that was not asked for: a title that fits several parts is refused with their names,
and what is left out is said in a notice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal

from magicpig_cli.documents.document import Document
from magicpig_cli.documents.parts import Part, PartInfo, Places, pages, sections
from magicpig_cli.documents.roman import roman_value
from magicpig_cli.errors import UsageError

_RANGE = re.compile(r"\s*(\d*)\s*(?:([-:\u2013])\s*(\d*)\s*)?")
# A title this similar is meant, if no other is.
_SIMILAR = 0.8
_SUGGESTED = 0.45
_NUMBERED = re.compile(
    r"(chapter|part|book|volume|section|act|scene|letter|canto|appendix|adventure|kapitel|teil)$"
)
_NUMBER_WORDS = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
_NUMBERS = {word: str(number) for number, word in enumerate(_NUMBER_WORDS, 1)}


@dataclass(frozen=True, slots=True)
class PartRequest:
    """What a person asked for: a title, or the first and last of pages or lines (None: to the end)."""

    kind: Literal["section", "pages", "lines"]
    title: str = ""
    first: int | None = None
    last: int | None = None

    @property
    def option(self) -> str:
        """How it was asked for."""
        return f"--{self.kind}"


def part_request(section: str | None, pages: str | None, lines: str | None) -> PartRequest | None:
    """The values of `--section`, `--pages` and `--lines` as a request; None where none is given.

    Raises
    ------
    UsageError
        If more than one is given, or a value is none.
    """
    given = [name for name, v in (("section", section), ("pages", pages), ("lines", lines)) if v is not None]
    if len(given) > 1:
        raise UsageError(
            f"{' and '.join(f'--{name}' for name in given)} name different parts; give one of them"
        )
    if section is not None:
        if not section.strip():
            raise UsageError('--section is empty; give a title, such as --section "Chapter 3"')
        return PartRequest("section", title=section)
    if pages is not None:
        return PartRequest("pages", "", *_range("--pages", pages, "10-42"))
    if lines is not None:
        return PartRequest("lines", "", *_range("--lines", lines, "1200:2400"))
    return None


def _range(option: str, value: str, example: str) -> tuple[int | None, int | None]:
    match = _RANGE.fullmatch(value) if value.isascii() or "\u2013" in value else None
    if match is None or not (match[1] or match[3]) or len(value) > 40:
        raise UsageError(f"{option} is {value[:40]!r}, but must be a range such as {example}")
    first = int(match[1]) if match[1] else None
    last = first if match[2] is None else int(match[3]) if match[3] else None
    if first == 0 or last == 0:
        raise UsageError(f"{option} is {value!r}, but counting begins with 1")
    if first is not None and last is not None and first > last:
        raise UsageError(f"{option} is {value!r}, but its first is after its last; turn it round")
    return first, last


def select(document: Document, request: PartRequest) -> Document:
    """The document with only the part that was asked for, and a notice that says so.

    Raises
    ------
    UsageError
        If there is no such part, or several that it could mean, or nothing is written in it.
    """
    if request.kind == "section":
        part = find_section(document, request.title)
        label, start, end = f'section "{part.title}"', part.start, part.end
    elif request.kind == "pages":
        label, start, end = _pages(document, request)
    else:
        label, start, end = _lines(document, request)
    text = document.text[start:end]
    if not text.strip():
        raise UsageError(f"there is no text in {label} of {document.source}: there is nothing to read")
    page_parts = pages(document.parts)
    places = Places(document.text, [page.start for page in page_parts])
    cut = places.part(label, 1, start, end, "heading")
    info = PartInfo(
        label,
        cut.first_line,
        cut.last_line,
        cut.first_page,
        cut.last_page,
        start,
        end,
        len(document.text),
    )
    share = f"{len(text):,} of {len(document.text):,} characters"
    first, last = f"{cut.first_line:,}", f"{cut.last_line:,}"
    lines = f"line {first}" if first == last else f"lines {first} to {last}"
    where = "" if request.kind == "lines" else f", {lines}"
    verb = "are" if label.startswith(("pages", "lines")) else "is"
    notice = f"{document.source}: only {label} {verb} read{where} ({share})"
    inside = tuple(_shifted(p, start) for p in document.parts if start <= p.start and p.end <= end)
    return replace(document, text=text, notices=(*document.notices, notice), parts=inside, part=info)


def _shifted(part: Part, by: int) -> Part:
    """A part of the cut text; its lines and pages stay those of the source, which people look up."""
    return replace(part, start=part.start - by, end=part.end - by)


def _pages(document: Document, request: PartRequest) -> tuple[str, int, int]:
    numbered = pages(document.parts)
    if not numbered:
        raise UsageError(
            f"{document.source} has no pages; use --lines or --section (magicpig outline lists its sections)"
        )
    first, last = _within(document, request, len(numbered), "page")
    label = f"page {first:,}" if first == last else f"pages {first:,}-{last:,}"
    return label, numbered[first - 1].start, numbered[last - 1].end


def _lines(document: Document, request: PartRequest) -> tuple[str, int, int]:
    places = Places(document.text)
    first, last = _within(document, request, places.n_lines, "line")
    label = f"line {first:,}" if first == last else f"lines {first:,}:{last:,}"
    return label, *places.lines(first, last)


def _within(document: Document, request: PartRequest, n: int, what: str) -> tuple[int, int]:
    first, last = request.first or 1, request.last or n
    if max(first, last) > n:
        raise UsageError(
            f"{request.option} asks for {what} {max(first, last):,}, but {document.source} has {n:,}"
        )
    return first, last


def find_section(document: Document, title: str) -> Part:
    """The one part that a title means: exactly, by its beginning, by words of it, or nearly.

    `#7` means the seventh section of the outline.

    Raises
    ------
    UsageError
        If none or several are meant; it names them.
    """
    found = sections(document.parts)
    if not found:
        raise UsageError(
            f"{document.source} has no sections that its reader finds; use --lines"
            + (" or --pages" if pages(document.parts) else "")
        )
    number = re.fullmatch(r"\s*#(\d{1,6})\s*", title)
    if number:
        if not 1 <= int(number[1]) <= len(found):
            raise UsageError(f"{document.source} has {len(found):,} sections, so there is no #{number[1]}")
        return found[int(number[1]) - 1]
    wanted = _words(title)
    keys = [_words(part.title) for part in found]
    for matches in (
        [i for i, key in enumerate(keys) if key == wanted],
        [i for i, key in enumerate(keys) if key[: len(wanted)] == wanted],
        [i for i, key in enumerate(keys) if _contains(key, wanted)],
        _nearly(keys, wanted, _SIMILAR),
    ):
        if len(matches) == 1:
            return found[matches[0]]
        if matches and wanted:
            raise UsageError(
                f"--section {title!r} means {len(matches):,} sections of {document.source}: "
                f"{_named(found, matches)}; name one by its number, such as --section '#{matches[0] + 1}'"
            )
    near = _nearly(keys, wanted, _SUGGESTED)
    hint = f"did you mean {_named(found, near)}?" if near else f"it has {_named(found, range(len(found)))};"
    raise UsageError(
        f"{document.source} has no section {title!r}; {hint} magicpig outline lists all {len(found):,}"
    )


def _words(title: str) -> tuple[str, ...]:
    """A title as it is compared: small words without signs, numbers of chapters as digits."""
    words = re.findall(r"\w+", title.casefold())
    for i in range(1, len(words)):
        if _NUMBERED.match(words[i - 1]):
            words[i] = _NUMBERS.get(words[i]) or _arabic(words[i])
    return tuple(words)


def _arabic(word: str) -> str:
    value = roman_value(word)
    return word if value is None else str(value)


def _contains(words: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    n = len(wanted)
    return any(words[i : i + n] == wanted for i in range(len(words) - n + 1))


def _nearly(keys: Sequence[tuple[str, ...]], wanted: tuple[str, ...], least: float) -> list[int]:
    """Those that are about as similar as the most similar one, the best first."""
    ratios = [(_similarity(key, wanted, strict=least >= _SIMILAR), i) for i, key in enumerate(keys)]
    best = max(ratios)[0]
    near = [(ratio, i) for ratio, i in ratios if ratio >= max(least, best - 0.1)]
    return [i for _, i in sorted(near, key=lambda pair: (-pair[0], pair[1]))][:3]


def _similarity(key: tuple[str, ...], wanted: tuple[str, ...], *, strict: bool) -> float:
    """Of a title, or of as many of its words in a row as are wanted, to the wanted ones; 0 to 1.

    Strictly, another number is another chapter, however similar the rest.
    """
    n = len(wanted)
    pieces = [key, *(key[i : i + n] for i in range(len(key) - n + 1))] if n else []
    return max(
        (
            SequenceMatcher(None, " ".join(piece), " ".join(wanted)).ratio()
            for piece in pieces
            if not strict or _digits(piece) == _digits(wanted)
        ),
        default=0.0,
    )


def _digits(words: tuple[str, ...]) -> list[str]:
    return [word for word in words if word.isdigit()]


def _named(found: Sequence[Part], which: Sequence[int], at_most: int = 5) -> str:
    names = [f'#{i + 1} "{found[i].title[:80]}"' for i in list(which)[:at_most]]
    more = f" and {len(which) - at_most:,} more" if len(which) > at_most else ""
    return ", ".join(names) + more
