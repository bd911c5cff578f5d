"""HTML: parsed as a browser does, written as plain text with Markdown's headings, lists and tables.

All text of the page is kept, menus and footers too: what matters is the person's to say. Scripts, styles and
the addresses of links are not text of the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from magicpig_cli.documents.decode import Decoded, decode, decode_as
from magicpig_cli.documents.parts import build_parts
from magicpig_cli.documents.readers.base import Reader, Text, UnreadableError
from magicpig_cli.documents.readers.writer import TextWriter

_BEGINNING = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.I | re.S)
_CHARSET = re.compile(
    rb"<meta\s[^>]*charset\s*=\s*[\"']?\s*([\w.:-]+)|<\?xml[^>]*encoding=[\"']([\w.:-]+)", re.I
)
_XHTML = re.compile(r"<\?xml\b|http://www\.w3\.org/1999/xhtml")
_EMPTY = re.compile(r"<([A-Za-z][\w:-]*)((?:\s+[^<>]*?)?)\s*/>")
_VOID = {
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "param",
    "source",
    "track",
    "wbr",
}
_SKIPPED = {
    "script",
    "style",
    "template",
    "head",
    "iframe",
    "object",
    "svg",
    "canvas",
    "select",
    "textarea",
    "rp",
}
_BLOCKS = {
    "address", "article", "aside", "blockquote", "body", "details", "dialog", "dir", "div", "dl", "fieldset",
    "figcaption", "figure", "footer", "form", "header", "hgroup", "hr", "legend", "main", "menu", "nav", "ol",
    "p", "pre", "search", "section", "table", "ul",
}  # fmt: skip
_LINES = {"dd", "dt", "li", "summary", "tr", "caption", "option"}
_OF_TABLES = {"table", "thead", "tbody", "tfoot", "colgroup"}
# A cell that holds one of these lays out a page; its table is not one of figures.
_LAYOUT = _BLOCKS - {"p", "div"} | {f"h{i}" for i in range(1, 7)}
_SUPERSCRIPT_LIMIT = 8
# The parser looks up through all elements around each of these, and cannot be stopped meanwhile: a million of
# them inside each other take hours. Browsers stop at some hundred.
_NESTING = re.compile(rf"<(/?)(?:{'|'.join(sorted(_BLOCKS - {'p', 'hr'}))}|sup)(?=[\s/>])", re.I)
_DEEPEST = 10_000


class Html(Reader):
    """A web page that was saved."""

    kind = "a web page (HTML)"
    suffixes = frozenset({".html", ".htm", ".xhtml"})
    packages = ("selectolax",)

    def recognises(self, data: bytes) -> bool:
        return _BEGINNING.match(data[:4096].removeprefix(b"\xef\xbb\xbf")) is not None

    def read(self, data: bytes) -> Text:
        """The page's text; the encoding that it declares counts where it is not UTF-8."""
        decoded = decode_page(data)
        writer = TextWriter()
        write_html(writer, decoded.text)
        text = writer.text()
        return Text(text, decoded.encoding, build_parts(text, writer.marks), decoded.remarks)


def decode_page(data: bytes) -> Decoded:
    """A page's source, in the encoding that it declares where it is not UTF-8."""
    match = _CHARSET.search(data[:4096])
    named = (match[1] or match[2]).decode("ascii", "replace") if match else None
    return (decode_as(data, named) if named else None) or decode(data)


def write_html(writer: TextWriter, html: str) -> None:
    """Write a page's body.

    Parameters
    ----------
    writer : TextWriter
        Gets its text and the marks of its headings.
    html : str

    Raises
    ------
    UnreadableError
        If its elements are nested deeper than any page's are.
    """
    from selectolax.lexbor import LexborHTMLParser

    if _XHTML.search(html[:2048]):
        # To HTML a `<title/>` is open, and swallows the whole page.
        html = _EMPTY.sub(lambda m: m[0] if m[1].lower() in _VOID else f"<{m[1]}{m[2]}></{m[1]}>", html)
    _check_depth(html)
    body = LexborHTMLParser(html).body
    if body is not None:
        _Walk(writer).run(body)


def _check_depth(html: str) -> None:
    depth = 0
    for tag in _NESTING.finditer(html):
        depth = max(0, depth - 1) if tag[1] else depth + 1
        if depth > _DEEPEST:
            raise UnreadableError(
                f"nests more than {_DEEPEST:,} elements in each other, so it is damaged or made to hang; "
                "save its text as a text file"
            )


class _Walk:
    """Goes through a tree without recursion: pages may be nested thousands of elements deep."""

    def __init__(self, writer: TextWriter) -> None:
        self._writer = writer
        self._counters: list[int | None] = []  # of the lists that are open; None without numbers
        self._preformatted = 0
        self._tables: list[bool] = []  # whether each open table is one of figures
        self._cells: list[int] = []
        self._in_heading = 0

    def run(self, root: Any) -> None:
        stack: list[tuple[Any, Callable[[], None] | None]] = []
        node: Any = root
        while True:
            leave = self._enter(node)
            child = None if leave is _STAY_OUT else node.child
            if child is not None:
                stack.append((node, leave))
                node = child
                continue
            if leave is not None:
                leave()
            # The root's own neighbours are never looked at: it is at the bottom of the stack.
            following = node.next if stack else None
            while following is None:
                if not stack:
                    return
                node, leave = stack.pop()
                if leave is not None:
                    leave()
                following = node.next if stack else None
            node = following

    def _enter(self, node: Any) -> Callable[[], None] | None:
        """Write what begins here; what to do at its end, or that its inside is not wanted."""
        tag, writer = node.tag, self._writer
        if tag == "-text":
            text = node.text_content or ""
            if self._preformatted:
                writer.verbatim(text)
            elif text.strip() or not self._between_rows(node):
                writer.words(text)
            return None
        if tag in _SKIPPED or tag in ("-comment", "!doctype", "_comment", "-doctype"):
            return _STAY_OUT
        if tag == "br":
            if self._in_heading or (self._tables and self._tables[-1]):
                writer.words(" ")
            else:
                writer.line_end()
            return None
        if tag == "img":
            alt = " ".join((node.attributes.get("alt") or "").split())
            writer.words(f"[image: {alt}]" if alt else "")
            return None
        enter = _ENTER.get(tag)
        if enter is not None:
            return enter(self, node)
        if self._in_heading or (self._tables and self._tables[-1] and tag not in _OF_TABLES):
            if tag in _BLOCKS or tag in _LINES:
                writer.words(" ")
            return None
        if tag in _BLOCKS:
            writer.block()
            return writer.block
        if tag in _LINES:
            writer.block(1)
            return lambda: writer.block(1)
        return None

    def _between_rows(self, node: Any) -> bool:
        return node.parent is not None and node.parent.tag in _OF_TABLES | {"tr", "ul", "ol"}

    def _heading(self, node: Any) -> Callable[[], None] | None:
        if self._in_heading or (self._tables and self._tables[-1]) or not node.text().strip():
            return None
        self._in_heading += 1
        self._writer.open_heading(int(node.tag[1]))

        def leave() -> None:
            self._in_heading -= 1
            self._writer.close_heading()

        return leave

    def _list(self, node: Any) -> Callable[[], None]:
        start = node.attributes.get("start") or ""
        first = int(start) if re.fullmatch(r"-?\d{1,6}", start) else 1
        self._writer.block(1 if self._counters else 2)
        self._counters.append(first if node.tag == "ol" else None)

        def leave() -> None:
            self._counters.pop()
            self._writer.block(1 if self._counters else 2)

        return leave

    def _item(self, node: Any) -> Callable[[], None]:
        self._writer.block(1)
        number = self._counters[-1] if self._counters else None
        sign = "- " if number is None else f"{number}. "
        if number is not None:
            self._counters[-1] = number + 1
        self._writer.open_prefix(sign, " " * len(sign))

        def leave() -> None:
            self._writer.close_prefix()
            self._writer.block(1)

        return leave

    def _quotation(self, node: Any) -> Callable[[], None]:
        self._writer.block()
        self._writer.open_prefix("> ", "> ")

        def leave() -> None:
            self._writer.close_prefix()
            self._writer.block()

        return leave

    def _pre(self, node: Any) -> Callable[[], None] | None:
        if self._preformatted or self._in_heading or (self._tables and self._tables[-1]):
            return None
        self._writer.block()
        self._writer.verbatim("```")
        self._writer.block(1)
        self._preformatted += 1

        def leave() -> None:
            self._preformatted -= 1
            self._writer.block(1)
            self._writer.verbatim("```")
            self._writer.block()

        return leave

    def _table(self, node: Any) -> Callable[[], None]:
        inside = self._tables and self._tables[-1]
        self._writer.words(" ") if inside else self._writer.block()
        self._tables.append(bool(inside) or not any(tag in _LAYOUT for tag in _tags_below(node)))

        def leave() -> None:
            self._tables.pop()
            self._writer.words(" ") if inside else self._writer.block()

        return leave

    def _row(self, node: Any) -> Callable[[], None]:
        self._writer.block(1)
        self._cells.append(0)

        def leave() -> None:
            self._cells.pop()
            self._writer.block(1)

        return leave

    def _cell(self, node: Any) -> Callable[[], None] | None:
        if not (self._tables and self._tables[-1]):
            self._writer.block(1)
            return lambda: self._writer.block(1)
        if self._cells:
            self._writer.words(" | " if self._cells[-1] else "")
            self._cells[-1] += 1
        return None

    def _rule(self, node: Any) -> Callable[[], None]:
        self._writer.block()
        self._writer.verbatim("* * *")
        return self._writer.block

    def _superscript(self, node: Any) -> None:
        text = node.text().strip()
        # 10<sup>6</sup> is not 106.
        if 0 < len(text) <= _SUPERSCRIPT_LIMIT and text[0].isalnum():
            self._writer.words("^")

    def _ruby(self, node: Any) -> Callable[[], None]:
        self._writer.words("(")
        return lambda: self._writer.words(")")

    def _quoted(self, node: Any) -> Callable[[], None]:
        self._writer.words("\u201c")
        return lambda: self._writer.words("\u201d")


def _nothing() -> None:
    """What `_enter` gives for an element whose inside is left out."""


_STAY_OUT = _nothing
_ENTER: dict[str, Callable[[_Walk, Any], Callable[[], None] | None]] = {
    **dict.fromkeys((f"h{level}" for level in range(1, 7)), _Walk._heading),
    "ul": _Walk._list,
    "ol": _Walk._list,
    "menu": _Walk._list,
    "li": _Walk._item,
    "blockquote": _Walk._quotation,
    "pre": _Walk._pre,
    "table": _Walk._table,
    "tr": _Walk._row,
    "td": _Walk._cell,
    "th": _Walk._cell,
    "hr": _Walk._rule,
    "sup": _Walk._superscript,
    "rt": _Walk._ruby,
    "q": _Walk._quoted,
}


def _tags_below(node: Any) -> Iterator[str]:
    """Names of the elements inside cells of a table, whatever their depth."""
    for inner in node.traverse(include_text=False):
        if inner.mem_id != node.mem_id and inner.tag not in _OF_TABLES:
            yield inner.tag
