"""Word documents (.docx): mammoth makes HTML of their headings, lists, tables and notes; then as HTML."""

from __future__ import annotations

import io
import re

from magicpig_cli.documents.parts import build_parts
from magicpig_cli.documents.readers.archive import Archive, check_xml
from magicpig_cli.documents.readers.base import Reader, Text, UnreadableError
from magicpig_cli.documents.readers.html import write_html
from magicpig_cli.documents.readers.writer import TextWriter

_MAIN = "word/document.xml"
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# The name of the stream, in UTF-16, in which Office keeps a document with a password.
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")

_ASIDE = re.compile(r"word/(comment|header|footer)s?\d*\.xml")
_IGNORED = re.compile(r"unrecognised element was ignored: (.+)")


class Docx(Reader):
    """A document of Word since 2007, or of what saves the same format."""

    kind = "a Word document (docx)"
    suffixes = frozenset({".docx", ".docm", ".dotx"})
    packages = ("mammoth", "selectolax")

    def recognises(self, data: bytes) -> bool:
        if data.startswith(_OLE):
            return _ENCRYPTED in data
        return data.startswith(b"PK\x03\x04") and _MAIN.encode() in data[:4096] + data[-65536:]

    def read(self, data: bytes) -> Text:
        """Paragraphs, lists, tables, foot- and endnotes; as if all changes were accepted."""
        if data.startswith(_OLE):
            if _ENCRYPTED in data:
                raise UnreadableError("is encrypted with a password; save a copy without one")
            raise UnreadableError("is an old Word document (doc); save it as docx or text first")
        archive = Archive(data)
        html, ignored = _to_html(archive, data)
        writer = TextWriter()
        write_html(writer, html)
        text = writer.text()
        return Text(text, "docx", build_parts(text, writer.marks), tuple(_remarks(archive, ignored)))


def _remarks(archive: Archive, ignored: list[str]) -> list[str]:
    """What of the document is not in its text."""
    kinds = {
        f"{match[1]}s"
        for name in archive.names()
        if (match := _ASIDE.fullmatch(name)) and b"<w:t" in archive.read(name)
    }
    remarks = [f"has {' and '.join(sorted(kinds))}; left out"] if kinds else []
    if ignored:
        remarks.append(f"holds what its reader does not know ({', '.join(ignored[:10])}); left out")
    return remarks


def _to_html(archive: Archive, data: bytes) -> tuple[str, list[str]]:
    """HTML of the main text, and the names of elements in it that mammoth passes over."""
    import mammoth

    if _MAIN not in archive:
        raise UnreadableError(f"is damaged: it holds no {_MAIN}; get it again")
    for name in archive.names():
        if name.endswith((".xml", ".rels")) and not name.startswith(
            ("word/media/", "docProps/", "customXml/")
        ):
            check_xml(archive.read(name), name)
    try:
        result = mammoth.convert_to_html(
            io.BytesIO(data),
            convert_image=mammoth.images.img_element(lambda image: {}),
            style_map="p[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => p:fresh",
        )
    except (KeyError, ValueError, AttributeError, IndexError, TypeError, OSError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UnreadableError(f"is damaged: its text cannot be taken out ({reason}); save it anew") from error
    ignored = [match[1] for message in result.messages if (match := _IGNORED.search(message.message))]
    return result.value, list(dict.fromkeys(ignored))
