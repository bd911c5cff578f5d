"""Notebooks, subtitles, texts with parts, folders of formats, and what happens without the extra."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
from pathlib import Path

import makers
import pytest
from outlined import outline

from magicpig_cli.documents import read_sources
from magicpig_cli.errors import UsageError

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
    assert documents[0].heading == ""
    assert documents[1].heading.endswith(
        f"end of {tmp_path / 'a.pdf'}, beginning of {tmp_path / 'b.epub'} <=="
    )
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
