"""EPUB: the pages of a book in its own order, each read as HTML; the table of contents names the rest."""

from __future__ import annotations

from xml.etree import ElementTree

from magicpig_cli.documents.parts import Mark, build_parts
from magicpig_cli.documents.readers.archive import Archive, resolve
from magicpig_cli.documents.readers.base import Reader, Text, UnreadableError
from magicpig_cli.documents.readers.html import decode_page, write_html
from magicpig_cli.documents.readers.writer import TextWriter

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
# Scrambled fonts, which are not text and no copy protection of it.
_FONT_SCRAMBLING = {"http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"}
_HTML_TYPES = {"application/xhtml+xml", "text/html", "text/x-oeb1-document", "application/x-dtbook+xml"}


class Epub(Reader):
    """An electronic book."""

    kind = "an EPUB book"
    suffixes = frozenset({".epub"})
    packages = ("selectolax",)

    def recognises(self, data: bytes) -> bool:
        names = data[:4096] + data[-65536:]
        return data.startswith(b"PK\x03\x04") and (
            b"application/epub+zip" in data[:256] or _CONTAINER.encode() in names
        )

    def read(self, data: bytes) -> Text:
        """All documents of the spine in order."""
        archive = Archive(data)
        package = _package_name(archive)
        root = archive.xml(package)
        manifest = {
            item.get("id", ""): (resolve(package, item.get("href", "")), item.get("media-type", ""), item)
            for item in _all(root, "item")
        }
        spine = [
            manifest[ref] for item in _all(root, "itemref") if (ref := item.get("idref", "")) in manifest
        ]
        chapters = [name for name, kind, _ in spine if kind in _HTML_TYPES]
        _refuse_protected(archive, set(chapters))
        if not chapters:
            raise UnreadableError("is damaged: its package names no chapters; get it again")
        titles = _contents(archive, manifest, root)
        writer = TextWriter()
        extra: list[Mark] = []
        for name in dict.fromkeys(chapters):
            before, start = len(writer.marks), writer.length
            writer.block()
            write_html(writer, decode_page(archive.read(name)).text)
            if len(writer.marks) == before and writer.length > start and name in titles:
                extra.append(Mark(titles[name], 1, start))
        text = writer.text()
        marks = sorted(
            [*writer.marks, *(_at_text(mark, text) for mark in extra)],
            key=lambda mark: (mark.start, mark.level),
        )
        return Text(text, "epub", build_parts(text, marks))


def _at_text(mark: Mark, text: str) -> Mark:
    """The mark moved over the line ends before its text."""
    start = mark.start
    while start < len(text) and text[start] == "\n":
        start += 1
    return Mark(mark.title, mark.level, start, mark.kind)


def _package_name(archive: Archive) -> str:
    for rootfile in _all(archive.xml(_CONTAINER), "rootfile"):
        path = rootfile.get("full-path")
        if path:
            return path
    raise UnreadableError(f"is damaged: its {_CONTAINER} names no package; get it again")


def _refuse_protected(archive: Archive, chapters: set[str]) -> None:
    if _ENCRYPTION not in archive:
        return
    for entry in _all(archive.xml(_ENCRYPTION), "EncryptedData"):
        algorithm = next((m.get("Algorithm", "") for m in _all(entry, "EncryptionMethod")), "")
        target = next((r.get("URI", "") for r in _all(entry, "CipherReference")), "")
        if algorithm not in _FONT_SCRAMBLING and resolve("", target) in chapters:
            raise UnreadableError(
                "is copy-protected (DRM): its chapters are encrypted; only a copy without protection can be "
                "read"
            )


def _contents(
    archive: Archive, manifest: dict[str, tuple[str, str, ElementTree.Element]], root: ElementTree.Element
) -> dict[str, str]:
    """Titles of the table of contents by the document that they lead to, the first of each."""
    titles: dict[str, str] = {}
    for name, kind, item in manifest.values():
        if name not in archive:
            continue
        if kind == "application/x-dtbncx+xml":
            for point in _all(archive.xml(name), "navPoint"):
                target = next((c.get("src", "") for c in _all(point, "content")), "")
                title = "".join(next((label.itertext() for label in _all(point, "text")), iter(())))
                titles.setdefault(resolve(name, target), " ".join(title.split()))
        elif "nav" in item.get("properties", "").split():
            from selectolax.lexbor import LexborHTMLParser

            for link in LexborHTMLParser(decode_page(archive.read(name)).text).css("nav a[href]"):
                title = " ".join(link.text().split())
                titles.setdefault(resolve(name, link.attributes.get("href") or ""), title)
    return {name: title for name, title in titles.items() if title}


def _all(root: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    """Elements of this name in whatever namespace."""
    return [e for e in root.iter() if isinstance(e.tag, str) and e.tag.rpartition("}")[2] == tag]
