"""Word and HTML give their right text and parts; what is left out is told, faults are one sentence."""

from __future__ import annotations

import io
import zipfile

import makers
from docx import Document
from docx.oxml import parse_xml
from outlined import outline

from magicpig_cli.documents import read_sources

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


def test_html_that_would_keep_the_parser_for_hours(read, refusal):
    for element in ("div", "sup", "ul><li", "BLOCKQUOTE\n", "section/"):
        assert "made to hang" in refusal("a.html", "<html><body>" + f"<{element}>" * 500_000 + "deep")
    flat = "<html><body><ul>" + "<li>a<p>b" * 20_000 + "</ul>" + "<div>c</div>" * 20_000
    assert read("a.html", flat).text.count("c") == 20_000
