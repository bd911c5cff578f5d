"""Bytes of one source to text: which encoding, and what was lost if anything was.

Declared encodings (a byte order mark) come first, then UTF-8, then UTF-16/32 without a mark;
only what is none of these is guessed (`legacy`). Nothing is dropped without a notice.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from magicpig_cli.documents.legacy import guess_encoding
from magicpig_cli.documents.signatures import what_binary

# UTF-32 before UTF-16: the little-endian mark of the one begins with the mark of the other.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS = bytes(sorted({*range(0x20), 0x7F} - {*b"\t\n\r\f\v\b\x1b"}))
_BLANKS = "\t\n\r\f\v\u2028\u2029\xa0\u3000\u200b"
_HIGH = bytes(range(0x80, 0x100))
# Ends of a file that UTF-8 explains better than an accented letter of an old encoding would: a
# sequence that had begun to continue, or the lead byte of accented Latin or of typographic signs.
_CUT_END = re.compile(rb"(?:[\xE0-\xEF][\x80-\xBF]|[\xF0-\xF4][\x80-\xBF]{1,2}|[\xC2-\xC5\xE2\xF0])\Z")
# Valid UTF-8 with more control bytes than this is something else (UTF-16 of Latin or Cyrillic).
_MOST_CONTROLS = 0.2
# Any other encoding with more than this is not text at all.
_MOST_CONTROLS_LEGACY = 0.01
# Enough of a text to tell its byte order by.
_JUDGED_CHARACTERS = 100_000


class NotTextError(ValueError):
    """The bytes are no text; the message says what they are, to stand after 'is'."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text, the name of its encoding, and remarks that stand after the source's name."""

    text: str
    encoding: str
    remarks: tuple[str, ...] = ()


def decode(data: bytes) -> Decoded:
    """Text of `data`, with newlines normalised to ``\\n``.

    Raises
    ------
    NotTextError
        If it is binary: a known format, or bytes that no text encoding explains.
    """
    kind = what_binary(data)
    if kind:
        raise NotTextError(kind)
    found = _declared(data) or _utf8(data) or _unmarked_wide(data) or _nearly_utf8(data) or _legacy(data)
    text, remarks = found.text, list(found.remarks)
    nuls = text.count("\0")
    if nuls:
        text = text.replace("\0", " ")
        count = "a NUL character" if nuls == 1 else f"{nuls:,} NUL characters"
        remarks.append(f"holds {count}, read as a space" + (" each" if nuls > 1 else ""))
    return Decoded(text.replace("\r\n", "\n").replace("\r", "\n"), found.encoding, tuple(remarks))


def decode_as(data: bytes, declared: str) -> Decoded | None:
    """Text of `data` in the encoding that it declares of itself in words (HTML, XML).

    None where something speaks louder: a mark, bytes that are UTF-8, an encoding that is unknown
    or that the bytes are not in.
    """
    if any(data.startswith(mark) for mark, _ in _MARKS) or _decodes(data, "utf-8"):
        return None
    try:
        name = codecs.lookup(declared).name
        # What browsers do: pages that say Latin-1 have always meant Microsoft's superset of it.
        name = "cp1252" if name in ("iso8859-1", "ascii") else name
        text = data.decode(name)
    except (LookupError, UnicodeError):
        return None
    text = text.replace("\0", " ").replace("\r\n", "\n").replace("\r", "\n")
    return Decoded(text, {"cp1252": "windows-1252"}.get(name, name))


def _declared(data: bytes) -> Decoded | None:
    for mark, encoding in _MARKS:
        if not data.startswith(mark):
            continue
        if encoding == "utf-32-le" and not _decodes(data[4:], encoding):
            continue  # UTF-16 whose first character is a NUL
        return _with_repairs(data, len(mark), encoding)
    return None


def _utf8(data: bytes) -> Decoded | None:
    if not _decodes(data, "utf-8"):
        return None
    if b"\x1b$" in data and b"\x1b(" in data and _decodes(data, "iso2022_jp"):
        return Decoded(data.decode("iso2022_jp"), "iso-2022-jp", ("is not UTF-8; read as ISO-2022-JP",))
    if _control_share(data) > _MOST_CONTROLS and (b"\0" in data or len(data) > 8):
        return None
    return Decoded(data.decode("utf-8"), "utf-8")


def _unmarked_wide(data: bytes) -> Decoded | None:
    """UTF-16 or UTF-32 without a mark: the NUL bytes of spaces and line ends tell which."""
    nuls = data.count(0)
    if not nuls or len(data) < 2:
        return None
    if nuls * 4 >= len(data) and len(data) % 4 == 0:
        for encoding in ("utf-32-le", "utf-32-be"):
            if _decodes(data, encoding) and _is_plausible(data.decode(encoding)):
                return Decoded(data.decode(encoding), encoding)
    even, odd = data[0::2].count(0), data[1::2].count(0)
    if min(even, odd) * 10 > max(even, odd):
        return None
    encoding = "utf-16-be" if even > odd else "utf-16-le"
    whole = data[: len(data) // 2 * 2]
    if not _decodes(whole, encoding) or not _is_plausible(whole.decode(encoding)):
        return None
    return _with_repairs(data, 0, encoding)


def _is_plausible(text: str) -> bool:
    """Mostly letters, digits and blanks, and hardly anything that no one writes."""
    text = text[:_JUDGED_CHARACTERS]
    strange = sum(1 for c in text if not (c.isprintable() or c in _BLANKS))
    common = sum(1 for c in text if c in " \n\t" or c.isalnum())
    return strange * 50 <= len(text) and common * 2 >= len(text)


def _nearly_utf8(data: bytes) -> Decoded | None:
    """UTF-8 that was cut inside a character or has a few bad bytes; not an old encoding."""
    cut = _utf8_cut_at(data)
    if cut is not None:
        rest_is_ascii = data[:cut].isascii()
        if rest_is_ascii and not _CUT_END.search(data[cut:]):
            return None
    else:
        text = data.decode("utf-8", "replace")
        bad = text.count("\ufffd")
        n_ascii = len(data.translate(None, _HIGH))
        if len(text) - n_ascii - bad <= bad:  # fewer whole characters of several bytes than broken ones
            return None
    if _control_share(data) > _MOST_CONTROLS_LEGACY:
        return None
    return _with_repairs(data, 0, "utf-8")


def _legacy(data: bytes) -> Decoded:
    share = _control_share(data)
    if share > _MOST_CONTROLS_LEGACY:
        raise NotTextError(f"binary data ({100 * share:.0f} % of its bytes are control codes)")
    codec, name = guess_encoding(data)
    remark = f"is not UTF-8; read as {name.replace('windows', 'Windows')} (a guess from its letters)"
    try:
        return Decoded(data.decode(codec), name, (remark,))
    except UnicodeDecodeError:
        lost = data.decode(codec, "replace")
        return Decoded(
            lost, name, (remark, f"has {lost.count(chr(0xFFFD)):,} bytes that are unreadable in it")
        )


def _with_repairs(data: bytes, start: int, encoding: str) -> Decoded:
    """Decode past a mark; what cannot be decoded becomes U+FFFD and one remark."""
    body = data[start:]
    try:
        return Decoded(body.decode(encoding), encoding)
    except UnicodeDecodeError as error:
        at = start + error.start
        text = body.decode(encoding, "replace")
        lost = text.count("\ufffd") - body.count("\ufffd".encode(encoding))
        value = data[at : at + error.end - error.start].hex(" ").upper()
        where = f"byte {at + 1:,} (0x{value})"
        if lost <= 1:
            end = ", the end of a cut character," if at + error.end - error.start >= len(data) else ""
            remark = f"is {encoding.upper()}, but {where}{end} is not; read as one replacement character"
        else:
            remark = (
                f"is {encoding.upper()}, but {lost:,} places are not, the first at {where}; "
                "each was read as a replacement character"
            )
        return Decoded(text, encoding, (remark,))


def _utf8_cut_at(data: bytes) -> int | None:
    """Where the last character begins, if all but it is UTF-8 and it is cut short."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return error.start
    return None


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _control_share(data: bytes) -> float:
    return 1 - len(data.translate(None, _CONTROLS)) / len(data) if data else 0.0
