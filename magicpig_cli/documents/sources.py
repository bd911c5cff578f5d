"""The sources of a command, read in the order given: files, standard input, folders.

What a file's format needs is its reader's business (`readers`); here is where bytes come from.
Everything that cannot be read is refused by name before anything is computed; whatever is left out of a
folder is named in a notice.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from magicpig_cli.documents.decode import NotTextError
from magicpig_cli.documents.document import Document
from magicpig_cli.documents.folder import list_folder
from magicpig_cli.documents.readers.base import UnreadableError
from magicpig_cli.documents.readers.registry import reader_for
from magicpig_cli.documents.selection import PartRequest, select
from magicpig_cli.errors import DoesNotFit, UsageError

STANDARD_INPUT = "standard input"
# Far more than any model reads, and little enough to hold in memory.
MOST_BYTES = 1_000_000_000
_PIECE_BYTES = 1 << 20
_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def read_sources(
    sources: Sequence[str], stdin: BinaryIO | None, part: PartRequest | None = None
) -> list[Document]:
    """Read every source.

    Parameters
    ----------
    sources : sequence of str
        Files, folders, or `-` for standard input (at most once).
    stdin : binary file or None
        Read if one of the sources is `-`; None where standard input is closed.
    part : PartRequest or None
        Read only this part of what must then be a single document.

    Returns
    -------
    list of Document
        In the order given; a folder gives one for each of its files that can be read.

    Raises
    ------
    UsageError
        If a source is missing, unreadable, binary, empty or blank, if `-` is given twice, or if there is no
        such part.
    DoesNotFit
        If a source has no end, or one beyond `MOST_BYTES`.
    """
    if not sources:
        raise UsageError("there is nothing to read; name a file, a folder, or - for standard input")
    if sum(source == "-" for source in sources) > 1:
        raise UsageError("standard input (-) can be read only once; name it once among the sources")
    documents = [document for source in sources for document in _read(source, stdin)]
    if part is not None:
        documents = [select(_only(documents, part), part)]
    if len(documents) == 1:
        return documents
    # The first text stands as it would alone, so that what was read of it serves for several as well.
    return [
        documents[0],
        *(replace(after, heading=_joint(before, after)) for before, after in pairwise(documents)),
    ]


def _joint(before: Document, after: Document) -> str:
    """The line between two texts, which names both; the first of several has no other line."""
    gap = "\n" if before.text.endswith("\n") else "\n\n"
    return f"{gap}==> end of {before.source}, beginning of {after.source} <=="


def _only(documents: list[Document], part: PartRequest) -> Document:
    if len(documents) == 1:
        return documents[0]
    names = ", ".join(document.source for document in documents[:3])
    raise UsageError(
        f"{part.option} reads a part of one document, but {len(documents):,} were named ({names}"
        f"{', ...' if len(documents) > 3 else ''}); name one"
    )


def printable_name(name: str) -> str:
    """A name on one line: no control characters, and bytes that are not UTF-8 replaced."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in text)


def _read(source: str, stdin: BinaryIO | None) -> list[Document]:
    if source == "-":
        return [_document(STANDARD_INPUT, _read_stdin(stdin))]
    name = printable_name(source)
    if not source:
        raise UsageError("a source has an empty name; name a file, a folder, or - for standard input")
    if _URL.match(source) and not os.path.exists(source):
        raise UsageError(
            f"{name} is an address, and magicpig fetches nothing; download it first (curl -LO {name}), then "
            "name the file"
        )
    path = Path(source)
    mode = _stat(path, name).st_mode
    if stat.S_ISDIR(mode):
        return _read_folder(source, name)
    if stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
        data, remarks = _read_file(path, name)
        return [_document(name, data, remarks)]
    kind = "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise UsageError(f"{name} is {kind}, not a text; name a file, a folder, or - for standard input")


def _stat(path: Path, name: str) -> os.stat_result:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(_missing(path, name)) from None
    except (OSError, ValueError) as error:
        raise UsageError(_unreadable(name, error)) from None


def _missing(path: Path, name: str) -> str:
    if path.is_symlink():
        target = printable_name(os.readlink(path))
        return f"{name} is a link to {target}, which does not exist"
    folder = path.parent
    if not folder.is_dir():
        return f"there is no file {name}: its folder {printable_name(str(folder))} does not exist"
    try:
        entries = {entry.lower(): entry for entry in os.listdir(folder)}
    except OSError:
        entries = {}
    close = get_close_matches(path.name.lower(), list(entries), n=3, cutoff=0.6)
    near = [printable_name(str(folder / entries[match])) for match in close]
    if near:
        return f"there is no file {name}; did you mean {' or '.join(near)}?"
    return f"there is no file {name}; check the name, or use - to read standard input"


def _unreadable(name: str, error: OSError | ValueError) -> str:
    if isinstance(error, PermissionError):
        return f"{name} cannot be read: permission denied (see its rights with ls -l)"
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return f"{name[:200]} cannot be read: {reason}"


def _read_stdin(stdin: BinaryIO | None) -> bytes:
    if stdin is None or stdin.closed:
        raise UsageError("standard input is closed, so - has nothing to read; pipe a text in")
    try:
        return _bytes_of(stdin, STANDARD_INPUT)
    except OSError as error:
        raise UsageError(_unreadable(STANDARD_INPUT, error)) from None


def _bytes_of(file: BinaryIO, name: str) -> bytes:
    """All bytes of a file, unless they are more than anything reads."""
    pieces, n_bytes = [], 0
    while piece := file.read(_PIECE_BYTES):
        pieces.append(piece)
        n_bytes += len(piece)
        if n_bytes > MOST_BYTES:
            raise DoesNotFit(
                f"{name} holds more than {MOST_BYTES // 10**6:,} MB, more than any model reads; "
                "cut a part out of it first"
            )
    return b"".join(pieces)


def _read_file(path: Path, name: str) -> tuple[bytes, tuple[str, ...]]:
    """All bytes of a file or pipe, and a remark if a file changed meanwhile."""
    try:
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            data = _bytes_of(file, name)
            after = os.fstat(file.fileno())
    except OSError as error:
        raise UsageError(_unreadable(name, error)) from None
    changed = stat.S_ISREG(before.st_mode) and (
        (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size)
        or (before.st_size and len(data) != after.st_size)
    )
    if changed:
        return data, (f"changed while it was read; what was read are {len(data):,} bytes",)
    return data, ()


def _document(name: str, data: bytes, remarks: tuple[str, ...] = ()) -> Document:
    if not data:
        raise UsageError(f"{name} is empty: there is nothing to read")
    reader = reader_for(name, data)
    try:
        reader.check_installed()
        read = reader.read(data)
    except NotTextError as reason:
        raise UsageError(f"{name} is {reason}" + _ask_for_text(str(reason))) from None
    except UnreadableError as reason:
        raise UsageError(f"{name} {reason}") from None
    if not _says_something(read.text):
        what = "no text" if reader.packages else "only blanks"
        raise UsageError(f"{name} holds {what} ({len(data):,} bytes): there is nothing to read in it")
    notices = tuple(f"{name} {remark}" for remark in (*remarks, *read.remarks))
    return Document(name, read.text, read.encoding, notices, parts=read.parts)


def _ask_for_text(reason: str) -> str:
    return "" if " first" in reason or "--model" in reason else ", not a text; name a text file"


def _says_something(text: str) -> bool:
    """Whether anything visible is in it: not only blanks, marks and format characters."""
    return any(unicodedata.category(c)[0] not in "ZC" for c in re.sub(r"\s+", "", text[:100_000])) or bool(
        text[100_000:].strip()
    )


def _read_folder(source: str, name: str) -> list[Document]:
    paths, skipped = list_folder(source)
    documents: list[Document] = []
    n_characters = 0
    for path in paths:
        file_name = printable_name(path)
        try:
            data, remarks = _read_file(Path(path), file_name)
            documents.append(_document(file_name, data, remarks))
        except (UsageError, DoesNotFit) as refusal:
            skipped.append((path, _short_reason(refusal.sentence, file_name)))
            continue
        n_characters += len(documents[-1].text)
        if n_characters > MOST_BYTES:
            raise DoesNotFit(
                f"the files of the folder {name} hold more than {MOST_BYTES // 10**6:,} MB of text, more "
                "than any model reads; name a folder below it, or the files themselves"
            )
    listing = _listing(source, skipped)
    if not documents:
        raise UsageError(f"the folder {name} holds no text file{': ' + listing if listing else ''}")
    if listing:
        first = documents[0]
        files = "1 text file" if len(documents) == 1 else f"{len(documents):,} text files"
        entries = "1 entry" if len(skipped) == 1 else f"{len(skipped):,} entries"
        notice = f"{name}: {files} read, {entries} skipped: {listing}"
        documents[0] = replace(first, notices=(notice, *first.notices))
    return documents


def _short_reason(sentence: str, name: str) -> str:
    reason = sentence.removeprefix(name).lstrip()
    return re.split(r"[;:,(]", reason)[0].removeprefix("is ").strip()


def _listing(source: str, skipped: list[tuple[str, str]], at_most: int = 40) -> str:
    names = [
        f"{printable_name(os.path.relpath(path, source))} ({reason})" for path, reason in sorted(skipped)
    ]
    more = f" and {len(names) - at_most:,} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more
