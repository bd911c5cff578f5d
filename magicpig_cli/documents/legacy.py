"""Which old encoding bytes are in, when they are neither UTF-8 nor UTF-16.

Texts in Latin letters are judged by how their marked letters sit in words, since general
detectors mix up the many encodings that differ in a few signs; all others go to
charset-normalizer, which knows the scripts of the world.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

# In order of preference: an earlier one wins unless a later one reads clearly better.
_LATIN = ("cp1252", "cp1250", "iso8859_2", "mac_roman", "cp850", "cp437")
_OTHER_SCRIPTS = [
    "cp1251", "koi8_r", "cp866", "iso8859_5", "mac_cyrillic", "cp1253", "iso8859_7", "cp1255",
    "cp1256", "cp874", "gb18030", "big5", "cp932", "euc_jp", "cp949",
]  # fmt: skip
_NAMES = {
    "cp1252": "windows-1252", "cp1250": "windows-1250", "cp1251": "windows-1251",
    "cp1253": "windows-1253", "cp1254": "windows-1254", "cp1255": "windows-1255", "cp1256": "windows-1256",
    "cp932": "shift_jis", "cp949": "euc-kr", "koi8_r": "koi8-r", "euc_jp": "euc-jp",
    "iso8859_2": "iso-8859-2", "iso8859_5": "iso-8859-5", "iso8859_7": "iso-8859-7",
    "mac_roman": "macintosh", "mac_cyrillic": "x-mac-cyrillic",
}  # fmt: skip

# Enough letters to judge by, in pieces from all over a long text.
_SAMPLE_BYTES = 1 << 18
_PIECES = 256
_HIGH = re.compile(rb"[\x80-\xFF]")
# In Western texts a few letters in a hundred carry a mark; elsewhere nearly all bytes are high.
_LATIN_HIGH_SHARE = 0.4
# s and z with caron, at the same place in both: common in Czech, Slovak, Slovene, Croatian and almost
# absent from the languages that cp1252 was made for.
_CARONS = re.compile(rb"[\x8A\x8E\x9A\x9E]")
_CARON_SHARE = 0.05

_QUOTES_IN_WORDS = "\u2018\u2019"
_OPENING_QUOTES = "\u201c\u201e\u201a\u00ab\u2039"


def guess_encoding(data: bytes) -> tuple[str, str]:
    """Python's codec and the usual name of the encoding that explains `data` best."""
    sample = _sample(data)
    high = len(re.findall(rb"[\x80-\xFF]", sample))
    letters = len(re.findall(rb"[A-Za-z]", sample))
    if high <= _LATIN_HIGH_SHARE * (high + letters):
        codec = _best_latin(sample, high)
    else:
        codec = _best_of_other_scripts(sample) or _best_latin(sample, high)
    return codec, _NAMES.get(codec, codec.replace("_", "-"))


def _sample(data: bytes) -> bytes:
    """All of a short text; of a long one pieces from all over, and where its first high bytes are."""
    if len(data) <= _SAMPLE_BYTES:
        return data
    step = len(data) // _PIECES
    size = _SAMPLE_BYTES // _PIECES
    return b"".join([*_around_high_bytes(data), *(data[at : at + size] for at in range(0, len(data), step))])


def _around_high_bytes(data: bytes, reach: int = 200) -> Iterator[bytes]:
    at = 0
    for _ in range(_PIECES):
        found = _HIGH.search(data, at)
        if found is None:
            return
        start, at = max(at, found.start() - reach), found.start() + reach
        yield data[start:at]


def _best_of_other_scripts(sample: bytes) -> str | None:
    from charset_normalizer import from_bytes

    best = from_bytes(sample, cp_isolation=_OTHER_SCRIPTS).best()
    return best.encoding if best else None


def _best_latin(sample: bytes, high: int) -> str:
    if len(_CARONS.findall(sample)) > _CARON_SHARE * high:
        order = ("cp1250", *(codec for codec in _LATIN if codec != "cp1250"))
    else:
        order = _LATIN
    scores = {codec: _oddity(sample, codec) for codec in order}
    least = min(scores.values())
    return next(codec for codec in order if scores[codec] <= least + 0.05)


def _oddity(sample: bytes, codec: str) -> float:
    """Share of the marked characters that sit where no one would write them."""
    text = sample.decode(codec, "replace")
    marked = odd = 0
    for before, char, after in zip(" " + text, text, text[1:] + " ", strict=False):
        if char.isascii():
            continue
        marked += 1
        odd += _is_odd(before, char, after)
    return odd / marked if marked else 0.0


def _is_odd(before: str, char: str, after: str) -> bool:
    category = unicodedata.category(char)
    if category.startswith("L") and char not in "ªº":
        misplaced_capital = category == "Lu" and before.islower()
        foreign = not unicodedata.name(char, "").startswith("LATIN") or char in "ƒˇ"
        return misplaced_capital or foreign
    if char in _QUOTES_IN_WORDS:
        return False
    if category in ("Co", "Cn", "Cc", "Sk") or char == "\ufffd":
        return True
    if unicodedata.name(char, "").startswith("BOX DRAWINGS"):
        return before.isalpha() or after.isalpha()
    if char in "¿¡":
        return before.isalpha()
    if char in _OPENING_QUOTES:
        return before.isalpha()
    return before.isalpha() and (after.isalpha() and category != "Pd")
