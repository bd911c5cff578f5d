"""Plain text, in any encoding; its chapters are found by the lines that usually head them."""

from __future__ import annotations

import re

from magicpig_cli.documents.decode import decode
from magicpig_cli.documents.parts import Mark, build_parts
from magicpig_cli.documents.readers.base import Reader, Text
from magicpig_cli.documents.readers.numbered import numbered_marks

_NUMBER = (
    r"(?:\d{1,4}|[ivxlcdm]{1,8}|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|"
    r"thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen|twenty(?:[ -]\w+)?|"
    r"(?:the )?(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|last))"
)
# Words that head a part, from the outermost in; all of a text's levels are counted from its own first.
_WORDS = (
    ("volume", "vol.", "band", "tome"),
    ("book", "part", "act", "buch", "teil", "partie"),
    ("chapter", "scene", "letter", "canto", "kapitel", "chapitre", "cap\u00edtulo", "capitolo", "appendix"),
)
_ALONE = "prologue|epilogue|preface|foreword|introduction|afterword|conclusion|prolog|epilog|vorwort|nachwort"
_LEVELS = {word: level for level, words in enumerate(_WORDS, 1) for word in words}
_HEAD = re.compile(
    rf"(?P<word>{'|'.join(map(re.escape, _LEVELS))})\s+(?P<number>{_NUMBER})\b"
    rf"(?P<title>\s*[.:\u2014\u2013-]?\s*.{{0,80}})"
    rf"|(?P<alone>{_ALONE})[.:]?",
    re.IGNORECASE,
)
_ALONE_HEAD = re.compile(rf"(?:{_ALONE})[.:]?", re.IGNORECASE)
# Three heads with nothing between them are a table of contents.
_CONTENTS = 3


class PlainText(Reader):
    """Whatever no other reader takes."""

    kind = "a text"
    suffixes = frozenset({".txt", ".text", ".log"})

    def read(self, data: bytes) -> Text:
        """Text as it is, and its chapters and form-feed pages."""
        decoded = decode(data)
        text = decoded.text
        starts = [0, *(match.end() for match in re.finditer("\f", text))] if "\f" in text else []
        if len(starts) > 1 and not text[starts[-1] :].strip():
            starts.pop()
        return Text(
            text,
            decoded.encoding,
            build_parts(text, chapter_marks(text), starts if len(starts) > 1 else ()),
            decoded.remarks,
        )


def chapter_marks(text: str) -> list[Mark]:
    """Chapters by the usual patterns: `CHAPTER IV`, `Chapter 3: The Door`, `PART TWO`, `Epilogue`.

    A head stands on a line of its own after an empty one. Where its number stands alone, a short
    next line is its title. Only where no word counts chapters, numbers alone head them (`IV. THE STORM`).
    """
    found: list[tuple[Mark, int]] = []
    at = 0
    after_blank = True
    lines = text.splitlines(keepends=True)
    for i, line in enumerate(lines):
        stripped = line.strip()
        match = _HEAD.fullmatch(stripped) if after_blank and 0 < len(stripped) <= 100 else None
        listed = i + 1 < len(lines) and _HEAD.fullmatch(lines[i + 1].strip())
        if match and not listed and _is_head(match):
            word = (match["word"] or "").lower()
            title, below = stripped, 1
            following = lines[i + 1].strip() if i + 1 < len(lines) else ""
            if word and not match["title"].strip(" .:\u2014\u2013-") and _is_title(lines, i + 1):
                title, below = f"{stripped.rstrip('.:')}: {following}", 2
            body = at + sum(map(len, lines[i : i + below]))
            found.append((Mark(title, _LEVELS.get(word, len(_WORDS)), at, "chapter"), body))
        after_blank = not stripped
        at += len(line)
    marks = _without_contents(found, text)
    if all(_ALONE_HEAD.fullmatch(mark.title) for mark in marks):
        alone = [Mark(mark.title, 1, mark.start, mark.kind) for mark in marks]
        marks = sorted([*alone, *numbered_marks(text)], key=lambda mark: mark.start)
    levels = sorted({mark.level for mark in marks})
    return [Mark(mark.title, levels.index(mark.level) + 1, mark.start, mark.kind) for mark in marks]


def _is_head(match: re.Match[str]) -> bool:
    """Not a sentence that happens to begin so: `Part one of the plan was to wait.`"""
    if match["alone"]:
        return True
    title = match["title"]
    if not title.strip():
        return True
    separated = title.lstrip()[:1] in tuple(".:\u2014\u2013-")
    words = [word for word in re.findall(r"\w+", title) if len(word) > 3]
    return (separated or all(word[0].isupper() for word in words)) and title.rstrip()[-1:] not in ",;"


def _is_title(lines: list[str], at: int) -> bool:
    line = lines[at].strip() if at < len(lines) else ""
    alone = at + 1 >= len(lines) or not lines[at + 1].strip()
    return 0 < len(line) <= 80 and alone and line[-1] not in ",;"


def _without_contents(found: list[tuple[Mark, int]], text: str) -> list[Mark]:
    """Heads without those that stand in a row with nothing between them.

    The last of a row heads what follows, and so do the ones of higher level right before it (`PART ONE`
    over `CHAPTER I`).
    """
    kept: list[Mark] = []
    row: list[Mark] = []
    for i, (mark, body) in enumerate(found):
        row.append(mark)
        end = found[i + 1][0].start if i + 1 < len(found) else len(text)
        if text[body:end].strip():
            first = len(row) - 1
            while first and (len(row) < _CONTENTS or row[first - 1].level < row[first].level):
                first -= 1
            kept += row[first:]
            row = []
    return kept + (row if len(row) < _CONTENTS else [])
