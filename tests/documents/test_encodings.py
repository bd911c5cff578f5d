"""Bytes to text: what is declared, what is guessed, what is repaired, what is refused."""

# ruff: noqa: RUF001 - quotation marks and letters of many scripts are the subject

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magicpig_cli.documents.decode import NotTextError, decode

# Every character that a text may hold: no surrogates, and no control codes but tab and line ends.
CHARACTERS = st.one_of(
    st.characters(exclude_categories=("Cs", "Cc")), st.sampled_from("\t\n\r abé你\U0001f600")
)
TEXTS = st.text(CHARACTERS, min_size=1)
MARKED = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}
LETTER = "It was set by the gardener, and it will be changed in May. Ask at the lodge.\n"

WESTERN = {
    "english": "The “old system” – a café’s accounts: €4,312, paid on 3 March…\n",
    "german": "Die Straße über die Brücke führt zum größten Gebäude, sagte Müller.\n",
    "french": "Déjà vu : l’été à la plage, où les élèves étaient très fatigués.\n",
    "spanish": "El niño comió mañana en España, ¿verdad? ¡Sí! Él también está aquí.\n",
    "swedish": "Sju sjösjuka sjömän sköttes av sju sköna sjuksköterskor på Åland.\n",
    "portuguese": "Não há razão para as lições serem difíceis; você verá amanhã.\n",
}
POLISH = "Zażółć gęślą jaźń. Wszyscy ludzie rodzą się wolni i równi pod względem swej godności.\n"
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy. Všichni lidé rodí se svobodní a sobě rovní.\n"
RUSSIAN = "Все люди рождаются свободными и равными в своем достоинстве и правах.\n"
CHINESE = "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。\n"
JAPANESE = "すべての人間は、生まれながらにして自由であり、平等である。\n"
GREEK = "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.\n"
KOREAN = "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.\n"
OTHERS = [
    ("cp1250", "windows-1250", POLISH),
    ("cp1250", "windows-1250", CZECH),
    ("iso8859_2", "iso-8859-2", POLISH),
    ("cp1251", "windows-1251", RUSSIAN),
    ("koi8_r", "koi8-r", RUSSIAN),
    ("cp1253", "windows-1253", GREEK),
    ("gb18030", "gb18030", CHINESE),
    ("cp932", "shift_jis", JAPANESE),
    ("euc_jp", "euc-jp", JAPANESE),
    ("cp949", "euc-kr", KOREAN),
]


def normalised(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize("encoding", MARKED)
@given(text=TEXTS)
def test_marked_text_comes_back(encoding, text):
    found = decode(MARKED[encoding] + text.encode(encoding))
    assert (found.text, found.encoding, found.remarks) == (normalised(text), encoding, ())


@given(text=TEXTS)
def test_plain_utf8_comes_back(text):
    text = text.lstrip("\ufeff")  # at the head it is a mark, not text
    if text.startswith(("%PDF-", "{\\rtf", "PK\x03\x04")):
        return
    found = decode(text.encode())
    assert (found.text, found.encoding, found.remarks) == (normalised(text), "utf-8", ())


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize(
    "text",
    [
        "The gate code is 4471. " + LETTER,
        "Der Schlüssel liegt unter der Matte.\r\nDie Tür ist grün.\r\n",
        "Все люди рождаются\n" * 3,
        "你好, 世界 123\n" * 4,
    ],
    ids=["english", "german", "russian", "chinese"],
)
def test_unmarked_wide_text_is_recognised(encoding, text):
    found = decode(text.encode(encoding))
    assert (found.text, found.encoding) == (normalised(text), encoding)


@pytest.mark.parametrize("language", WESTERN)
@pytest.mark.parametrize("times", [1, 200])
def test_western_texts_are_read_as_windows_1252(language, times):
    text = WESTERN[language] * times
    found = decode(text.encode("cp1252"))
    assert (found.text, found.encoding) == (text, "windows-1252")
    assert len(found.remarks) == 1
    assert "Windows-1252" in found.remarks[0]


@pytest.mark.parametrize(("codec", "name", "sentence"), OTHERS)
@pytest.mark.parametrize("times", [2, 50])
def test_other_encodings_are_told_apart_and_named(codec, name, sentence, times):
    text = sentence * times
    found = decode(text.encode(codec))
    assert found.text == text
    assert found.encoding == name
    assert len(found.remarks) == 1


@pytest.mark.parametrize("character", ["é", "ß", "’", "…", "\U0001f600"])
@pytest.mark.parametrize("before", ["", "Der Schlüssel – hier. "], ids=["ascii", "accents"])
def test_a_character_cut_at_the_end_costs_one_character(character, before):
    whole = before + "caf"
    encoded = character.encode()
    for kept in range(1, len(encoded)):
        data = whole.encode() + encoded[:kept]
        found = decode(data)
        assert (found.text, found.encoding) == (whole + "\ufffd", "utf-8")
        (remark,) = found.remarks
        assert f"byte {len(whole.encode()) + 1} " in remark
        assert encoded[:kept].hex(" ").upper() in remark


@pytest.mark.parametrize("tail", ["café", "voilà", "très", "für ü"])
def test_an_old_text_that_ends_in_an_accent_is_not_taken_for_cut_utf8(tail):
    found = decode(("He said " + tail).encode("cp1252"))
    assert (found.text, found.encoding) == ("He said " + tail, "windows-1252")


@given(text=st.text(st.sampled_from("ab é你\U0001f600\n"), min_size=4), at=st.integers(0, 3))
def test_a_few_bad_bytes_do_not_turn_utf8_into_another_encoding(text, at):
    text = "éè 你" + text
    data = text[:at].encode() + b"\xff" + text[at:].encode()
    found = decode(data)
    assert (found.text, found.encoding) == (text[:at] + "\ufffd" + text[at:], "utf-8")
    assert f"byte {len(text[:at].encode()) + 1} (0xFF)" in found.remarks[0]


def test_several_bad_places_are_counted():
    found = decode("é你好世界".encode() + b"\xff a \xfe b")
    assert found.text == "é你好世界\ufffd a \ufffd b"
    assert "2 places" in found.remarks[0]
    assert "byte 15 (0xFF)" in found.remarks[0]


def test_half_a_unit_at_the_end_of_utf16_costs_one_character():
    found = decode(codecs.BOM_UTF16_LE + LETTER.encode("utf-16-le")[:-1])
    assert found.text == LETTER[:-1] + "\ufffd"
    assert len(found.remarks) == 1


@pytest.mark.parametrize("nuls", [1, 3])
def test_nothing_is_lost_around_nuls(nuls):
    found = decode(b"The first half." + b"\0" * nuls + b"The second half.\n")
    assert found.text == "The first half." + " " * nuls + "The second half.\n"
    assert found.encoding == "utf-8"
    assert "NUL" in found.remarks[0]


def test_terminal_colours_in_a_log_are_text():
    log = "\x1b[31merror\x1b[0m: disk – full\n" * 5
    assert decode(log.encode()).text == log


def test_iso_2022_jp_is_read():
    text = "すべての人間は自由である。\n"
    found = decode(text.encode("iso2022_jp"))
    assert (found.text, found.encoding) == (text, "iso-2022-jp")


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj", "PDF"),
        (b"PK\x03\x04\x14\0\0\0\x08\0!\0....[Content_Types].xml....word/document.xml", "docx"),
        (b"PK\x03\x04\x14\0\0\0\0\0....mimetypeapplication/epub+zipPK", "EPUB"),
        (b"PK\x03\x04\x14\0\0\0\x08\0!\0....xl/workbook.xml", "xlsx"),
        (b"PK\x03\x04\x14\0\0\0\x08\0!\0....notes.txt", "zip"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(100), "old Office"),
        (b"{\\rtf1\\ansi hello}", "RTF"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "PNG"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "gzip"),
        (b"\x7fELF\x02\x01\x01" + bytes(9), "program"),
        (b"GGUF\x03\0\0\0" + bytes(16), "GGUF"),
        (bytes(range(256)) * 8, "binary"),
        (b"\0" * 1000, "binary"),
        (b"\x93\x01\x02\x03\xff\xfe\x04" * 40, "binary"),
    ],
)
def test_binary_is_refused_and_named(head, says):
    with pytest.raises(NotTextError, match=says):
        decode(head)


@pytest.mark.parametrize("word", ["ID3", "BZh", "GGUF", "OggS", "PAR1", "GIF89a"])
def test_a_text_may_begin_with_letters_that_are_also_a_signature(word):
    text = f"{word} is how such files begin.\n"
    assert decode(text.encode()).text == text


@given(data=st.binary(min_size=1, max_size=200))
def test_any_bytes_are_either_text_or_refused_with_a_reason(data):
    try:
        found = decode(data)
    except NotTextError:
        return
    found.text.encode()
    assert "\r" not in found.text
    assert "\0" not in found.text
