"""Markdown: the text as it is, with its headings as parts."""

from __future__ import annotations

import re

from magicpig_cli.documents.decode import decode
from magicpig_cli.documents.parts import Mark, build_parts
from magicpig_cli.documents.readers.base import Reader, Text

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)$")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|[*`]+|(?<!\w)_+|_+(?!\w)")
# Lines that cannot be the paragraph above an underline.
_NO_PARAGRAPH = re.compile(r" {0,3}(?:>|[-*+] |\d+[.)] |#{1,6}(?:\s|$)|\|)| {4}|\t")


class Markdown(Reader):
    """Text with headings written as `# Title` or underlined."""

    kind = "a Markdown text"
    suffixes = frozenset({".md", ".markdown", ".mdown", ".mkd", ".rmd", ".qmd"})

    def read(self, data: bytes) -> Text:
        """The text, unchanged."""
        decoded = decode(data)
        return Text(
            decoded.text,
            decoded.encoding,
            build_parts(decoded.text, heading_marks(decoded.text)),
            decoded.remarks,
        )


def heading_marks(text: str) -> list[Mark]:
    """Headings outside fenced code and front matter."""
    marks: list[Mark] = []
    at, fence, before, before_at = 0, "", "", 0
    lines = text.split("\n")
    skip = _front_matter_lines(lines)
    for number, line in enumerate(lines):
        start, at = at, at + len(line) + 1
        if number < skip:
            continue
        opened = _FENCE.match(line)
        if fence:
            if opened and opened[1].startswith(fence) and not opened[2].strip():
                fence = ""
            continue
        if opened and not (opened[1][0] == "`" and "`" in opened[2]):
            fence, before = opened[1], ""
            continue
        heading = _HEADING.match(line)
        underline = _UNDERLINE.match(line)
        if heading:
            marks.append(Mark(_plain(heading[2] or ""), len(heading[1]), start))
            before = ""
        elif underline and before.strip():
            marks.append(Mark(_plain(before), 1 if underline[1][0] == "=" else 2, before_at))
            before = ""
        else:
            is_paragraph = bool(line.strip()) and not _NO_PARAGRAPH.match(line)
            before, before_at = (line if is_paragraph else ""), start
    return [mark for mark in marks if mark.title]


def _front_matter_lines(lines: list[str]) -> int:
    if lines[0].rstrip() != "---":
        return 0
    for number, line in enumerate(lines[1:200], 1):
        if line.rstrip() in ("---", "..."):
            return number + 1
    return 0


def _plain(title: str) -> str:
    return _MARKUP.sub(lambda match: match[1] or "", title).strip()
