"""A part of a document is read exactly as asked, or refused with what there is instead."""

from __future__ import annotations

import makers
import pytest

from magicpig_cli.documents import Document, read_sources
from magicpig_cli.documents.selection import part_request, select
from magicpig_cli.errors import UsageError

BOOK = (
    "A BOOK\n\nPART ONE\n\nCHAPTER I: The Tide\n\nIt came.\n\nCHAPTER II: Nora\n\nShe saw it.\n\n"
    "PART TWO\n\nCHAPTER III: The Letter\n\nIt lay there.\n\nChapter 31: The Lamp\n\nIt burnt.\n"
)


@pytest.fixture
def book(tmp_path) -> Document:
    path = tmp_path / "book.txt"
    path.write_text(BOOK)
    (document,) = read_sources([str(path)], None)
    return document


def taken(document: Document, **wish: str) -> Document:
    request = part_request(wish.get("section"), wish.get("pages"), wish.get("lines"))
    assert request is not None
    return select(document, request)


def refusal(document: Document, **wish: str) -> str:
    with pytest.raises(UsageError) as caught:
        taken(document, **wish)
    assert "\n" not in caught.value.sentence
    return caught.value.sentence


@pytest.mark.parametrize(
    "title",
    ["CHAPTER III: The Letter", "Chapter 3", "chapter iii", "chapter three", "the letter", "The Leter", "#5"],
)
def test_a_section_is_found_by_what_people_call_it(book, title):
    part = taken(book, section=title)
    assert part.text == "CHAPTER III: The Letter\n\nIt lay there.\n\n"
    assert part.part is not None
    assert part.part.label == 'section "CHAPTER III: The Letter"'
    assert (part.part.first_line, part.part.last_line) == (15, 18)
    assert book.text[part.part.start : part.part.end] == part.text
    assert part.part.of_characters == len(BOOK)
    (notice,) = part.notices
    assert notice == (
        f'{book.source}: only section "CHAPTER III: The Letter" is read, lines 15 to 18 '
        f"({len(part.text)} of {len(BOOK)} characters)"
    )


def test_a_section_holds_those_below_it(book):
    part = taken(book, section="part one")
    assert part.text == BOOK[BOOK.index("PART ONE") : BOOK.index("PART TWO")]
    assert [(p.title, part.text[p.start :].split("\n")[0]) for p in part.parts] == [
        ("PART ONE", "PART ONE"),
        ("CHAPTER I: The Tide", "CHAPTER I: The Tide"),
        ("CHAPTER II: Nora", "CHAPTER II: Nora"),
    ]


def test_numbers_alone_head_chapters_where_no_word_does(tmp_path):
    """As in many collections: a list of contents, then `ADVENTURE I. ...`, `II. ...`, and bare numbers."""
    prose = "It rained all the week, and nobody came to the door. " * 8 + "\n\n"
    contents = "   I. The Lost Key\n  II. The Red Boat\n III. The Ferry\n\n"
    body = (
        f"ADVENTURE I. THE LOST KEY\n\nI.\n\n{prose}II.\n\n{prose}III.\n\n{prose}"
        f"II. THE RED BOAT\n\n{prose}III. The Ferry\n\n{prose}"
    )
    path = tmp_path / "tales.txt"
    path.write_text(f"TALES\n\n{contents}{body}")
    (document,) = read_sources([str(path)], None)
    assert [(part.title, part.level) for part in document.parts] == [
        ("ADVENTURE I. THE LOST KEY", 1),
        ("I.", 2),
        ("II.", 2),
        ("III.", 2),
        ("II. THE RED BOAT", 1),
        ("III. The Ferry", 1),
    ]
    assert taken(document, section="adventure 1").text == body[: body.index("II. THE RED BOAT")]
    assert taken(document, section="the red boat").text.startswith("II. THE RED BOAT\n")


@pytest.mark.parametrize(
    "line",
    ["{}. Buy Milk\n\n", "{}\n\n" + "Long prose of a page. " * 30 + "\n\n",
     "Figure {}. The Tide\n\n" + "Long prose about it. " * 30 + "\n\n",
     "{}. It was raining when they came.\n\n" + "Long prose about it. " * 30 + "\n\n"],
    ids=["list", "pages", "captions", "sentences"],
)  # fmt: skip
def test_numbers_that_head_nothing(tmp_path, line):
    path = tmp_path / "notes.txt"
    path.write_text("NOTES\n\n" + "".join(line.format(n) for n in range(1, 8)))
    (document,) = read_sources([str(path)], None)
    assert document.parts == ()


def test_a_title_that_means_none_or_several_is_refused_with_names(book):
    assert "means 4 sections" in refusal(book, section="chapter")
    assert "--section '#2'" in refusal(book, section="chapter")
    sentence = refusal(book, section="Chapter 4")
    assert "has no section 'Chapter 4'; did you mean" in sentence
    assert "magicpig outline lists all 6" in sentence
    assert 'it has #1 "PART ONE"' in refusal(book, section="zzz")
    assert "6 sections, so there is no #7" in refusal(book, section="#7")
    plain = Document("a.txt", "Just words.\n", "utf-8")
    assert "has no sections that its reader finds; use --lines" in refusal(plain, section="x")
    assert "--section is empty" in refusal(plain, section=" ")


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("2:3", "two\nthree\n"),
        ("3:", "three\nfour"),
        (":1", "one\n"),
        ("4", "four"),
        ("1-4", "one\ntwo\nthree\nfour"),
    ],
)
def test_lines(lines, text):
    document = Document("a.txt", "one\ntwo\nthree\nfour", "utf-8")
    assert taken(document, lines=lines).text == text


def test_pages_of_a_pdf(tmp_path):
    path = tmp_path / "a.pdf"
    path.write_bytes(makers.pdf(["One.", "Two.", "Three.", ""], bookmarks=[("Middle", 0, 1)]))
    (document,) = read_sources([str(path)], None)
    part = taken(document, pages="2-3")
    assert part.text == "Two.\n\nThree.\n\n"
    assert part.part is not None
    assert (part.part.label, part.part.first_page, part.part.last_page) == ("pages 2-3", 2, 3)
    assert "only pages 2-3 are read" in part.notices[-1]
    assert [(p.title, p.first_page) for p in part.parts] == [("page 2", 2), ("page 3", 3)]
    section = taken(document, section="middle")
    assert section.part is not None
    assert (section.part.first_page, section.part.last_page) == (2, 4)
    assert "--pages asks for page 5, but" in refusal(document, pages="5")
    assert "there is no text in page 4" in refusal(document, pages="4")


def test_a_part_of_one_line_is_a_line(tmp_path):
    path = tmp_path / "a.md"
    path.write_text("# One\n\none\n\n# Two\n# Three\n\nthree\n")
    (document,) = read_sources([str(path)], None)
    assert " is read, line 5 (" in taken(document, section="two").notices[-1]
    assert " is read, lines 6 to 8 (" in taken(document, section="three").notices[-1]


def test_ranges_that_are_none(book):
    for value in ("", "a", "1-b", "-", "1:2:3", "1.5", "\u0661"):
        assert "must be a range such as 1200:2400" in refusal(book, lines=value)
    assert "counting begins with 1" in refusal(book, lines="0:3")
    assert "first is after its last" in refusal(book, lines="5:3")
    assert "asks for line 99, but" in refusal(book, lines="2:99")
    assert "has no pages" in refusal(book, pages="1-2")
    assert "name different parts" in refusal(book, pages="1", lines="2")
    assert part_request(None, None, None) is None


def test_a_part_of_several_documents_is_refused(tmp_path):
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("# One\n\ntext\n")
    with pytest.raises(UsageError, match=r"--section reads a part of one document, but 2 were named"):
        read_sources([str(tmp_path)], None, part_request("One", None, None))
