"""PDF: the text of each page in reading order by PDFium, its bookmarks as parts, its pages as pages."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from magicpig_cli.documents.parts import Mark, build_parts
from magicpig_cli.documents.readers.base import Reader, Text, UnreadableError

# What PDFium gives for a hyphen at a line's end, with the line end itself.
_HYPHEN = "\ufffe"
_DIVIDED = re.compile(r"(\w+)[\ufffe\x02](\w+)")
# A page that says only this says nothing.
_PAGE_NUMBER = re.compile(
    r"\W*(?:(?:page|seite|p\.|s\.)\s*)?(?:\d+|[ivxlc]+)?(?:\s*(?:of|/|von)\s*\d+)?\W*", re.I
)
_AT_MOST_NAMED = 20


class Pdf(Reader):
    """A document of pages."""

    kind = "a PDF"
    suffixes = frozenset({".pdf"})
    packages = ("pypdfium2",)

    def recognises(self, data: bytes) -> bool:
        return data.startswith(b"%PDF-")

    def read(self, data: bytes) -> Text:
        """Text of all pages, an empty line between them."""
        import pypdfium2

        if b"%PDF-" not in data[:1024]:
            raise UnreadableError("is named like a PDF but is none; give it the suffix of what it is")
        try:
            pdf = pypdfium2.PdfDocument(data)
        except pypdfium2.PdfiumError as error:
            raise UnreadableError(_refusal(str(error))) from None
        try:
            return _text_of(pdf, data)
        finally:
            pdf.close()


def _refusal(reason: str) -> str:
    lowered = reason.lower()
    if "password" in lowered or "security" in lowered:
        return "is encrypted with a password; save a copy without one (qpdf --decrypt --password=... IN OUT)"
    return f"is a damaged PDF that cannot be opened ({reason.rstrip('.')}); get it again"


def _text_of(pdf: Any, data: bytes) -> Text:
    n_pages = len(pdf)
    if not n_pages:
        raise UnreadableError("is a PDF without pages: there is nothing to read")
    pages, wordless = [], []
    for number in range(n_pages):
        text, has_objects = _page(pdf, number)
        pages.append(text)
        if has_objects and _PAGE_NUMBER.fullmatch(text):
            wordless.append(number + 1)
    if all(_PAGE_NUMBER.fullmatch(page) for page in pages):
        count = "1 page" if n_pages == 1 else f"{n_pages:,} pages"
        raise UnreadableError(
            f"has {count} but no text (a scan?): there is nothing to read; recognise its text first "
            "(ocrmypdf IN OUT)"
        )
    pages = _join_divided(pages)
    starts, at = [], 0
    for page in pages:
        starts.append(at)
        at += len(page) + 2
    text = "\n\n".join(pages) + "\n"
    remarks = []
    if wordless:
        remarks.append(
            f"has no text on {_numbers(wordless)} of {n_pages:,} (pictures, drawings or a scan?); "
            "nothing is read there"
        )
    if b"%%EOF" not in data[-4096:]:
        remarks.append(f"has no end mark, so it may be cut; {n_pages:,} pages were found in it")
    return Text(text, "pdf", build_parts(text, _bookmarks(pdf, starts), starts), tuple(remarks))


def _page(pdf: Any, number: int) -> tuple[str, bool]:
    """Text of a page, and whether anything at all is on it."""
    import pypdfium2

    try:
        page = pdf[number]
        text = page.get_textpage().get_text_range()
        has_objects = bool(text.strip()) or next(page.get_objects(max_depth=1), None) is not None
        page.close()
    except pypdfium2.PdfiumError as error:
        raise UnreadableError(
            f"is damaged: page {number + 1:,} of {len(pdf):,} cannot be read "
            f"({str(error).rstrip('.')}); get it again"
        ) from None
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", " ")
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n"), has_objects


def _join_divided(pages: list[str]) -> list[str]:
    """Words that were divided at a line's end made whole.

    The hyphen stays where the document writes the word with one elsewhere (`well-known`), or where what
    follows it begins with a capital or a digit.
    """
    if not any(_DIVIDED.search(page) for page in pages):
        return [_unhyphenated(page) for page in pages]
    compounds = Counter(word.lower() for page in pages for word in re.findall(r"\w+-\w+", page))

    def join(match: re.Match[str]) -> str:
        first, second = match[1], match[2]
        keep = f"{first}-{second}".lower() in compounds or not second[0].islower()
        return f"{first}-{second}" if keep else first + second

    return [_unhyphenated(_DIVIDED.sub(join, page)) for page in pages]


def _unhyphenated(page: str) -> str:
    return page.replace(_HYPHEN, "-").replace("\x02", "-")


def _bookmarks(pdf: Any, starts: list[int]) -> list[Mark]:
    """The outline that the file carries: titles and the pages they lead to."""
    marks = []
    for bookmark in pdf.get_toc():
        target = bookmark.get_dest()
        page = target.get_index() if target is not None else None
        title = (bookmark.get_title() or "").strip()
        if page is not None and 0 <= page < len(starts) and title:
            marks.append(Mark(title, bookmark.level + 1, starts[page]))
    return sorted(marks, key=lambda mark: mark.start)


def _numbers(pages: list[int]) -> str:
    named = ", ".join(f"{page:,}" for page in pages[:_AT_MOST_NAMED])
    more = f" and {len(pages) - _AT_MOST_NAMED:,} more" if len(pages) > _AT_MOST_NAMED else ""
    return f"{'page' if len(pages) == 1 else 'pages'} {named}{more}"
