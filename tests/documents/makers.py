"""Makes the small documents that the readers' tests read, sharing no code with the readers."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence

CONTAINER = (
    '<?xml version="1.0"?><container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
    '<rootfiles><rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles>'
    "</container>"
)
NAV = """<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"><body>
<nav epub:type="toc"><ol><li><a href="text/one.xhtml">The Harbour</a></li>
<li><a href="text/two%20b.xhtml#top">The Letter</a></li></ol></nav></body></html>"""
NCX = """<?xml version="1.0"?><ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap>
<navPoint id="a"><navLabel><text>The Harbour</text></navLabel><content src="text/one.xhtml"/></navPoint>
<navPoint id="b"><navLabel><text>The Letter</text></navLabel><content src="text/two%20b.xhtml"/></navPoint>
</navMap></ncx>"""
ONE = """<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml"><head><title>x</title></head><body>
<h1>The Harbour</h1><p>The tide came in at four&#160;o\u2019clock.</p><p>Nobody saw it.</p></body></html>"""
TWO = """<html xmlns="http://www.w3.org/1999/xhtml"><body>
<p>The letter lay under the lamp.</p></body></html>"""


def pdf(pages: Sequence[str], *, bookmarks: Sequence[tuple[str, int, int]] = (), password: str = "") -> bytes:
    """A PDF with a line of text for each line of a page; a page `[image]` is only a drawing.

    `bookmarks` are title, level from 0, and page from 0.
    """
    from fpdf import FPDF

    document = FPDF()
    for number, page in enumerate(pages):
        document.add_page()
        document.set_font("helvetica", size=12)
        for title, level, on in bookmarks:
            if on == number:
                document.start_section(title, level)
        if page == "[image]":
            document.rect(20, 20, 100, 100, style="F")
        elif page:
            document.multi_cell(150, 7, page)
    if password:
        document.set_encryption(owner_password="owner", user_password=password)
    return bytes(document.output())


def zipped(members: dict[str, bytes | str]) -> bytes:
    """A zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def epub(more: dict[str, bytes | str] | None = None, *, ncx: bool = False) -> bytes:
    """A book of two chapters, the second without a heading of its own; `more` adds or replaces members."""
    toc = (
        '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'
        if ncx
        else '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
    )
    package = f"""<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">
<manifest>{toc}
<item id="two" href="text/two%20b.xhtml" media-type="application/xhtml+xml"/>
<item id="one" href="text/one.xhtml" media-type="application/xhtml+xml"/>
<item id="pic" href="cover.png" media-type="image/png"/></manifest>
<spine><itemref idref="one"/><itemref idref="two"/></spine></package>"""
    members: dict[str, bytes | str] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": package,
        "OEBPS/toc.ncx" if ncx else "OEBPS/nav.xhtml": NCX if ncx else NAV,
        "OEBPS/text/one.xhtml": ONE,
        "OEBPS/text/two b.xhtml": TWO,
    }
    return zipped(members | (more or {}))


def docx() -> bytes:
    """A Word document with headings, runs, a list and a table."""
    from docx import Document

    document = Document()
    document.add_heading("Harbour committee", level=0)
    document.add_heading("Slipway", level=1)
    paragraph = document.add_paragraph("The slipway is ")
    paragraph.add_run("worn").bold = True
    paragraph.add_run(" in two places.")
    document.add_paragraph("Three offers", style="List Bullet")
    document.add_paragraph("One refusal", style="List Bullet")
    document.add_heading("Costs & dates", level=2)
    table = document.add_table(rows=2, cols=2)
    for row, cells in zip(table.rows, (("Item", "Euro"), ("Lamp", "1,200")), strict=True):
        for cell, text in zip(row.cells, cells, strict=True):
            cell.text = text
    document.add_paragraph("Work begins in May.")
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def notebook() -> bytes:
    """A notebook with prose, code, printed and drawn outputs and an error."""
    picture = {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": ["<Figure>"]}}
    cells = [
        {"cell_type": "markdown", "source": ["# Tides\n", "\n", "Measured at the pier."]},
        {
            "cell_type": "code",
            "source": "height = 4.2\nprint(height)",
            "outputs": [{"output_type": "stream", "name": "stdout", "text": ["4.2\n"]}, picture],
        },
        {"cell_type": "markdown", "source": "## Errors"},
        {
            "cell_type": "code",
            "source": ["1 / 0"],
            "outputs": [
                {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "division", "traceback": []}
            ],
        },
        {
            "cell_type": "code",
            "source": "height",
            "outputs": [{"output_type": "execute_result", "data": {"text/plain": "4.2"}}],
        },
    ]
    value = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"language_info": {"name": "python"}},
        "cells": cells,
    }
    return json.dumps(value).encode()


SRT = """1
00:00:01,000 --> 00:00:03,000
<i>The tide</i> is coming in.

2
00:00:03,500 --> 00:00:05,000
Run, {\\an8}now!
- Where?

3
00:12:00,000 --> 00:12:02,000
Home &amp; dry.
"""
VTT = """WEBVTT - harbour

NOTE not spoken

STYLE
::cue { color: red }

intro
00:01.000 --> 00:03.000 position:10%
<v Nora>The <00:02.000><c>tide</c> is coming in.

00:03.000 --> 00:04.000
<v Nora>The <00:02.000><c>tide</c> is coming in.

01:00:00.000 --> 01:00:01.000
Over.
"""
