"""PDF and EPUB give their right text and parts; damaged, locked or hostile files are one sentence."""

from __future__ import annotations

import struct

import makers
import pytest
from outlined import outline

from magicpig_cli.documents.readers import archive

# ---- PDF


def test_pdf_text_pages_and_bookmarks(read):
    pages = ["The Harbour\nThe tide came in at four.", "", "Caf\xe9 \xab na\xefve \xbb\n17"]
    document = read("a.pdf", makers.pdf(pages, bookmarks=[("Part I", 0, 0), ("Letter", 1, 2)]))
    assert document.text == "The Harbour\nThe tide came in at four.\n\n\n\nCaf\xe9 \xab na\xefve \xbb\n17\n"
    assert (document.encoding, document.notices) == ("pdf", ())
    assert [
        (p.first_page, document.text[p.start : p.end].strip()) for p in document.parts if p.kind == "page"
    ] == [
        (1, pages[0]),
        (2, ""),
        (3, pages[2]),
    ]
    sections = [p for p in document.parts if p.kind != "page"]
    assert [(p.title, p.level, p.first_page, p.last_page) for p in sections] == [
        ("Part I", 1, 1, 3),
        ("Letter", 2, 3, 3),
    ]


def test_pdf_words_divided_at_line_ends_are_made_whole(read):
    pages = [
        "It was an exam-\nple of a well-\nknown light in the sky-\nTower.",
        "A well-known fact; 1990-\n1995.",
    ]
    document = read("a.pdf", makers.pdf(pages))
    assert "an example of a well-known light" in document.text
    assert "sky-Tower" in document.text
    assert "1990-1995" in document.text.replace("-\n", "-")
    assert not set(document.text) & set("\ufffe\x02\r")


def test_pdf_pages_without_text_are_named(read, refusal):
    document = read("a.pdf", makers.pdf(["First words here.", "[image]", "Last words here."]))
    (notice,) = document.notices
    assert "has no text on page 2 of 3" in notice
    sentence = refusal("scan.pdf", makers.pdf(["[image]", "[image]", "[image]"]))
    assert "has 3 pages but no text (a scan?)" in sentence
    assert "ocrmypdf" in sentence
    assert "has 2 pages but no text" in refusal("numbers.pdf", makers.pdf(["1", "- 2 -"]))


def test_pdf_with_password_or_damage_is_refused(refusal):
    data = makers.pdf(["Some text."])
    assert "is encrypted with a password" in refusal("a.pdf", makers.pdf(["x"], password="secret"))
    for cut in (20, len(data) // 2):
        assert "is a damaged PDF" in refusal("a.pdf", data[:cut])
    assert "named like a PDF but is none" in refusal("a.pdf", b"<html>Not found</html>")


def test_pdf_without_its_end_is_told(read):
    data = makers.pdf(["Some text."])
    cut = data[: data.rindex(b"%%EOF")]
    assert "has no end mark" in read("a.pdf", cut).notices[0]


# ---- EPUB


@pytest.mark.parametrize("ncx", [False, True])
def test_epub_in_the_order_of_its_spine(read, ncx):
    document = read("a.epub", makers.epub(ncx=ncx))
    assert document.text == (
        "# The Harbour\n\nThe tide came in at four o\u2019clock.\n\nNobody saw it.\n\n"
        "The letter lay under the lamp.\n"
    )
    assert outline(document) == [
        ("The Harbour", 1, "# The Harbour"),
        ("The Letter", 1, "The letter lay under the lamp."),
    ]
    assert document.encoding == "epub"


def test_epub_pages_are_xhtml_where_empty_elements_end_at_once(read):
    page = (
        '<?xml version="1.0" encoding="iso-8859-1"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title/>'
        '<script src="a.js"/></head><body><h1><a id="x"/>Caf\xe9</h1><p>One<br/>two</p><div class="b"/>'
        "<p>three <i/>four</p></body></html>"
    )
    document = read("a.epub", makers.epub({"OEBPS/text/one.xhtml": page.encode("latin-1")}))
    assert document.text.startswith("# Caf\xe9\n\nOne\ntwo\n\nthree four\n\nThe letter")


def encryption(algorithm: str, target: str) -> str:
    return (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container" '
        'xmlns:enc="http://www.w3.org/2001/04/xmlenc#"><enc:EncryptedData>'
        f'<enc:EncryptionMethod Algorithm="{algorithm}"/>'
        f'<enc:CipherData><enc:CipherReference URI="{target}"/>'
        "</enc:CipherData></enc:EncryptedData></encryption>"
    )


def test_epub_with_drm_is_refused_and_scrambled_fonts_are_no_matter(read, refusal):
    locked = encryption("http://www.w3.org/2001/04/xmlenc#aes128-cbc", "OEBPS/text/one.xhtml")
    book = makers.epub({"META-INF/encryption.xml": locked, "OEBPS/text/one.xhtml": b"\x93\xff" * 100})
    assert "is copy-protected (DRM)" in refusal("a.epub", book)
    fonts = encryption("http://www.idpf.org/2008/embedding", "OEBPS/font.otf")
    assert "tide" in read("a.epub", makers.epub({"META-INF/encryption.xml": fonts})).text


def test_epub_faults(refusal):
    book = makers.epub()
    assert "is damaged" in refusal("a.epub", book[: len(book) // 2])
    assert "is damaged" in refusal("a.epub", "no archive at all")
    assert "holds no OEBPS/book.opf" in refusal(
        "a.epub",
        makers.zipped({"mimetype": "application/epub+zip", "META-INF/container.xml": makers.CONTAINER}),
    )
    assert "is no XML" in refusal("a.epub", makers.epub({"META-INF/container.xml": "<container>"}))
    flipped = bytearray(book)
    at = book.index(b"one.xhtml") + 40
    flipped[at : at + 4] = b"\0\0\0\0"
    assert "cannot be unpacked" in refusal("a.epub", bytes(flipped))


LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">'
    '<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]><container>&c;</container>'
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_nested_entities_are_refused(refusal, encoding):
    laughs = LAUGHS.encode(encoding)
    assert "defines XML entities" in refusal("a.epub", makers.epub({"META-INF/container.xml": laughs}))
    word = makers.zipped({"word/document.xml": laughs, "[Content_Types].xml": "<Types/>"})
    assert "defines XML entities" in refusal("a.docx", word)


def test_zip_bombs_are_refused_before_they_unpack(refusal, monkeypatch):
    assert archive.MAX_MEMBER_BYTES >= 100 << 20, "the longest real books must pass"
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 1 << 20)
    bomb = makers.epub({"OEBPS/text/one.xhtml": b"<p>" + b"a" * (2 << 20)})
    assert "a zip bomb?" in refusal("a.epub", bomb)
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 128 << 20)
    monkeypatch.setattr(archive, "MAX_TOTAL_BYTES", 1 << 20)
    many = {f"word/part{i}.xml": "<a>" + "b" * 400_000 + "</a>" for i in range(4)}
    bomb = makers.zipped({"word/document.xml": "<a/>", **many})
    assert "a zip bomb?" in refusal("a.docx", bomb)


def test_a_member_that_lies_about_its_size_is_damaged(refusal):
    """An archive whose directory says 10 bytes for a member of a million."""
    book = bytearray(makers.epub({"OEBPS/text/one.xhtml": b"<p>" + b"a" * 1_000_000}))
    entry = book.rindex(b"OEBPS/text/one.xhtml") - 46
    assert book[entry : entry + 4] == b"PK\x01\x02"
    book[entry + 24 : entry + 28] = struct.pack("<I", 10)
    assert "is damaged" in refusal("a.epub", bytes(book))


def test_a_member_with_a_password_is_refused(refusal):
    book = bytearray(makers.epub())
    entry = book.rindex(b"META-INF/container.xml") - 46
    book[entry + 8] |= 1
    assert "encrypted with a password" in refusal("a.epub", bytes(book))
