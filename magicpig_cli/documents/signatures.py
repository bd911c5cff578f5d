"""Files that are no text, told by their first bytes, with what a person calls them."""

from __future__ import annotations

_CONVERT = "which has no reader here; save it as PDF, docx or text first"

# First bytes that no text begins with.
_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"%PDF-", "a PDF"),
    (b"{\\rtf", f"an RTF document, {_CONVERT}"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", f"an old Office document (doc, xls, ppt), {_CONVERT}"),
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first (gunzip)"),
    (b"BZh", "bzip2-compressed; unpack it first (bunzip2)"),
    (b"\xfd7zXZ\0", "xz-compressed; unpack it first (unxz)"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed; unpack it first (unzstd)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"Rar!\x1a\x07", "a RAR archive; unpack it first"),
    (b"\x7fELF", "a program (ELF)"),
    (b"\xcf\xfa\xed\xfe", "a program (Mach-O)"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"GGUF", "a GGUF model; name it with --model"),
    (b"PAR1", "a Parquet table"),
    (b"ID3", "an audio file"),
    (b"OggS", "an audio file"),
    (b"fLaC", "an audio file"),
)
_ZIP_KINDS: tuple[tuple[bytes, str], ...] = (
    (b"word/", "a Word document (docx)"),
    (b"xl/", "an Excel workbook (xlsx)"),
    (b"ppt/", "a PowerPoint presentation (pptx)"),
    (b"application/epub+zip", "an EPUB book"),
    (b"application/vnd.oasis.opendocument", "an OpenDocument file (odt, ods, odp)"),
)
# Signatures made of letters: a text may well begin with them, so binary bytes must follow.
_LETTERS_ONLY = (b"GIF87a", b"GIF89a", b"BZh", b"GGUF", b"PAR1", b"ID3", b"OggS", b"fLaC")


def what_binary(data: bytes) -> str | None:
    """What `data` is, to stand after 'is', or None if no signature is known."""
    if data.startswith(b"PK\x03\x04"):
        return _zip_kind(data)
    if data.startswith(b"RIFF") and data[8:12] in (b"WAVE", b"AVI ", b"WEBP"):
        return "an audio, film or picture file (RIFF)"
    for signature, kind in _SIGNATURES:
        if data.startswith(signature):
            if signature in _LETTERS_ONLY and _looks_textual(data[:512]):
                continue
            return kind
    return None


def _zip_kind(data: bytes) -> str:
    # Names of the members stand at the head and again in the directory at the end.
    names = data[:4096] + data[-65536:]
    for mark, kind in _ZIP_KINDS:
        if mark in names:
            return f"{kind}, {_CONVERT}"
    return "a zip archive; unpack it first"


def _looks_textual(head: bytes) -> bool:
    return not any(byte < 32 and byte not in b"\t\n\r\f\v" for byte in head)
