"""Each format gives its right text and parts; what is damaged, locked or hostile is one sentence."""

from __future__ import annotations

import importlib.util
import io
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import makers
import pytest
from docx import Document
from docx.oxml import parse_xml

from magicpig_cli.documents import Document as Read
from magicpig_cli.documents import read_sources
from magicpig_cli.documents.readers import archive
from magicpig_cli.errors import UsageError


@pytest.fixture
def read(tmp_path):
    def read(name: str, data: bytes | str) -> Read:
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        (document,) = read_sources([str(path)], None)
        for part in document.parts:
            assert 0 <= part.start <= part.end <= len(document.text)
            assert document.text[: part.start].count("\n") + 1 == part.first_line
        return document

    return read


@pytest.fixture
def refusal(read):
    def refusal(name: str, data: bytes | str) -> str:
        with pytest.raises(UsageError) as caught:
            read(name, data)
        sentence = caught.value.sentence
        assert "\n" not in sentence
        assert name in sentence
        return sentence

    return refusal


def outline(document: Read) -> list[tuple[str, int, str]]:
    """Title, level and first line of each section."""
    return [
        (part.title, part.level, document.text[part.start :].splitlines()[0])
        for part in document.parts
        if part.kind != "page"
    ]


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


# ---- Word


def test_docx_headings_lists_and_tables(read):
    document = read("a.docx", makers.docx())
    assert document.text == (
        "# Harbour committee\n\n# Slipway\n\nThe slipway is worn in two places.\n\n"
        "- Three offers\n- One refusal\n\n"
        "## Costs & dates\n\nItem | Euro\nLamp | 1,200\n\nWork begins in May.\n"
    )
    assert outline(document) == [
        ("Harbour committee", 1, "# Harbour committee"),
        ("Slipway", 1, "# Slipway"),
        ("Costs & dates", 2, "## Costs & dates"),
    ]
    assert (document.encoding, document.notices) == ("docx", ())


def test_docx_says_what_it_leaves_out(read):
    document = Document()
    document.add_paragraph("Body.")
    document.sections[0].header.paragraphs[0].text = "Top of each page"
    paragraph = document.add_paragraph("Area: ")
    uri = "http://schemas.openxmlformats.org/officeDocument/2006/math"
    paragraph._p.append(parse_xml(f'<m:oMath xmlns:m="{uri}"><m:r><m:t>a=b</m:t></m:r></m:oMath>'))
    buffer = io.BytesIO()
    document.save(buffer)
    read_document = read("a.docx", buffer.getvalue())
    assert read_document.text == "Body.\n\nArea:\n"
    assert any("has headers; left out" in notice for notice in read_document.notices)
    assert any("oMath" in notice and "left out" in notice for notice in read_document.notices)


def test_docx_faults(refusal):
    data = makers.docx()
    assert "is damaged" in refusal("a.docx", data[: len(data) // 2])
    ole = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)
    assert "is an old Word document" in refusal("a.docx", ole)
    locked = ole + "EncryptedPackage".encode("utf-16-le")
    assert "is encrypted with a password" in refusal("a.docx", locked)
    assert "is encrypted with a password" in refusal("named-otherwise.bin", locked)
    with zipfile.ZipFile(io.BytesIO(data)) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    members["word/document.xml"] = members["word/document.xml"][:-200]
    assert "is no XML" in refusal("a.docx", makers.zipped(members))


# ---- HTML

PAGE = """<!DOCTYPE html><html><head><title>x</title><style>p { color: red }</style></head><body>
<nav><a href="/">Home</a> <a href="/b">About</a></nav>
<h1>The <em>Harbour</em></h1><p>One  two
three<br>new line &amp; caf\u00e9, 10<sup>6</sup> waves, H<sub>2</sub>O</p><p>Unclosed<p>also
<ul><li>a<li>b <b>bold</b>er<ol start=3><li>x</li><li>y</li></ol></ul>
<blockquote><p>Quoted</p></blockquote><pre>
def f():
    return  1
</pre><table><tr><th>A</th><th>B</th></tr><tr><td>1</td><td>2<p>3</p></td></tr></table>
<table><tr><td><h2>Layout</h2><p>cell</p></td><td>right</td></tr></table><h2> </h2><hr>
<h3>Sub<br>two</h3>end<script>var a = "<p>no</p>"</script> <img alt="a pier" src=x> <q>said</q>
<!-- no --></body></html>"""
PAGE_TEXT = """Home About

# The Harbour

One two three
new line & caf\u00e9, 10^6 waves, H2O

Unclosed

also

- a
- b bolder
  3. x
  4. y

> Quoted

```
def f():
    return  1
```

A | B
1 | 2 3

## Layout

cell

right

* * *

### Sub two

end [image: a pier] \u201csaid\u201d
"""


def test_html_as_a_browser_shows_it(read):
    document = read("a.html", PAGE)
    assert document.text == PAGE_TEXT
    assert outline(document) == [
        ("The Harbour", 1, "# The Harbour"),
        ("Layout", 2, "## Layout"),
        ("Sub two", 3, "### Sub two"),
    ]


def test_html_is_known_without_a_suffix_and_declares_its_encoding(read):
    assert read("page", PAGE).text == PAGE_TEXT
    (piped,) = read_sources(["-"], io.BytesIO(PAGE.encode()))
    assert piped.text == PAGE_TEXT
    words = "\u041c\u043e\u0440\u0435 \u0438 \u043d\u043e\u0447\u044c"
    russian = f'<html><head><meta charset="koi8-r"></head><body>{words}'
    document = read("a.htm", russian.encode("koi8-r"))
    assert (document.text, document.encoding) == (
        "\u041c\u043e\u0440\u0435 \u0438 \u043d\u043e\u0447\u044c\n",
        "koi8-r",
    )
    assert (
        read("a.html", '<html><meta charset="latin1"><p>\u201cx\u201d'.encode("cp1252")).text
        == "\u201cx\u201d\n"
    )
    assert read("plain.txt", PAGE).text == PAGE, "a text file is read as it is"


def test_html_without_text_and_html_very_deep(read, refusal):
    assert "holds no text" in refusal("a.html", "<html><script>x()</script></html>")
    deep = "<html><body>" + "<div>" * 3000 + "deep" + "<blockquote>" * 20 + "quoted"
    assert read("a.html", deep).text == "deep\n\n" + "> " * 20 + "quoted\n"


# ---- notebooks, subtitles


def test_notebook_cells_and_outputs(read, refusal):
    document = read("a.ipynb", makers.notebook())
    assert document.text == (
        "# Tides\n\nMeasured at the pier.\n\n```python\nheight = 4.2\nprint(height)\n```\n\n```\n4.2\n```\n\n"
        "## Errors\n\n```python\n1 / 0\n```\n\n```\nZeroDivisionError: division\n```\n\n"
        "```python\nheight\n```\n\n```\n4.2\n```\n"
    )
    assert outline(document) == [("Tides", 1, "# Tides"), ("Errors", 2, "## Errors")]
    assert "1 output that is no text" in document.notices[0]
    assert "is a damaged notebook" in refusal("a.ipynb", makers.notebook()[:200])
    assert "is a damaged notebook" in refusal("a.ipynb", "[1, 2]")


def test_subtitles_without_numbers_and_with_a_time_a_minute(read, refusal):
    document = read("a.srt", makers.SRT.replace("\n", "\r\n"))
    assert document.text == (
        "[0:00:01]\nThe tide is coming in.\nRun, now!\n- Where?\n[0:12:00]\nHome & dry.\n"
    )
    assert [part[0] for part in outline(document)] == ["0:00:00 to 0:10:00", "0:10:00 to 0:20:00"]
    document = read("a.vtt", makers.VTT)
    assert document.text == "[0:00:01]\nNora: The tide is coming in.\n[1:00:00]\nOver.\n"
    assert "holds no subtitles" in refusal("a.srt", "Just words.\n")
    (piped,) = read_sources(["-"], io.BytesIO(makers.SRT.encode("utf-8-sig")))
    assert piped.text.startswith("[0:00:01]\nThe tide")


# ---- texts with parts


def test_markdown_headings(read):
    text = (
        "---\ntitle: x\n---\n# The *Harbour* #\n\ntext\n\n```\n# no heading\n```\nSetext [link](x)\n=====\n\n"
        "- item\n---\n\nTwo\n---\n#hashtag\n"
    )
    document = read("a.md", text)
    assert document.text == text
    assert outline(document) == [
        ("The Harbour", 1, "# The *Harbour* #"),
        ("Setext link", 1, "Setext [link](x)"),
        ("Two", 2, "Two"),
    ]


def test_chapters_of_a_plain_text(read):
    text = (
        "THE HARBOUR\n\nCHAPTER I. Tide\nCHAPTER II. Nora\n\n"
        "CHAPTER I\n\nCHAPTER II\n\nCHAPTER III\n\nPART ONE\n\nCHAPTER I\n\nThe Tide\n\n"
        "It came.\n\nChapter two of the plan was to wait,\nand so on.\n\nCHAPTER II: Nora\n\nShe saw it.\n\n"
        "PART TWO\n\nChapter 3. The Letter\n\nText.\n\nEPILOGUE\n\nEnd.\n"
    )
    document = read("a.txt", text)
    assert [(title, level) for title, level, _ in outline(document)] == [
        ("PART ONE", 1),
        ("CHAPTER I", 2),
        ("CHAPTER II: Nora", 2),
        ("PART TWO", 1),
        ("Chapter 3. The Letter", 2),
        ("EPILOGUE", 2),
    ]
    assert document.text == text
    paged = read("b.txt", "one\n\ftwo\n\fthree\n")
    assert [(p.first_page, paged.text[p.start : p.end].strip()) for p in paged.parts] == [
        (1, "one"),
        (2, "two"),
        (3, "three"),
    ]


def test_definitions_of_source_code(read):
    python = (
        "import os\n\n@cache\ndef f(x):\n    return x\n\n"
        "class A:\n    def g(self):\n        pass\n\nasync def h(): ...\n"
    )
    assert outline(read("a.py", python)) == [
        ("def f", 1, "@cache"),
        ("class A", 1, "class A:"),
        ("def A.g", 2, "    def g(self):"),
        ("def h", 1, "async def h(): ..."),
    ]
    assert read("old.py", "print 'x'\n").parts == ()
    rust = "use x;\n\npub fn run(a: u8) {\n    fn inner() {}\n}\n\nimpl Pig {\n}\n"
    assert [title for title, _, _ in outline(read("a.rs", rust))] == ["fn run", "impl Pig"]
    go = "package a\n\nfunc (p *Pig) Run() {\n}\n"
    assert [title for title, _, _ in outline(read("a.go", go))] == ["func Run"]


# ---- folders, the extra, addresses


def test_a_folder_reads_every_known_format_and_names_the_rest(tmp_path):
    (tmp_path / "a.pdf").write_bytes(makers.pdf(["Paper."]))
    (tmp_path / "b.epub").write_bytes(makers.epub())
    (tmp_path / "c.docx").write_bytes(makers.docx())
    (tmp_path / "d.md").write_text("# Notes\n")
    (tmp_path / "locked.pdf").write_bytes(makers.pdf(["x"], password="secret"))
    (tmp_path / "scan.pdf").write_bytes(makers.pdf(["[image]"]))
    documents = read_sources([str(tmp_path)], None)
    assert [Path(d.source).name for d in documents] == ["a.pdf", "b.epub", "c.docx", "d.md"]
    assert documents[0].heading == f"==> {tmp_path / 'a.pdf'} <=="
    notice = documents[0].notices[0]
    assert "locked.pdf (encrypted with a password)" in notice
    assert "scan.pdf (has 1 page but no text" in notice


@pytest.mark.parametrize(
    ("name", "make"), [("a.pdf", lambda: makers.pdf(["x"])), ("a.html", lambda: b"<p>x")]
)
def test_without_the_extra_one_sentence_names_it(refusal, monkeypatch, name, make):
    data = make()
    real = importlib.util.find_spec
    missing = {"pypdfium2", "selectolax", "mammoth"}
    monkeypatch.setattr(
        "magicpig_cli.documents.readers.base.find_spec", lambda n: None if n in missing else real(n)
    )
    sentence = refusal(name, data)
    assert "needs the documents extra" in sentence
    assert "pip install 'magicpig-cli[documents]'" in sentence


def test_an_address_is_not_fetched():
    with pytest.raises(UsageError, match="magicpig fetches nothing; download it first"):
        read_sources(["https://example.org/book.pdf"], None)


def test_readers_import_their_packages_only_when_they_read():
    packages = {"pypdfium2", "selectolax", "mammoth"}
    code = f"import sys, magicpig_cli.documents; print(*{packages} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == []
