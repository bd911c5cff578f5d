"""Members of a zip archive that is a document (EPUB, DOCX), read with limits and as XML without tricks.

A few kilobytes can claim to unpack to terabytes, or to expand to them by nested entities; both are refused
before memory is spent.
"""

from __future__ import annotations

import io
import posixpath
import zipfile
import zlib
from xml.etree import ElementTree
from xml.parsers import expat

from magicpig_cli.documents.readers.base import UnreadableError

# The text of the longest books is a few megabytes; their markup a few times that.
MAX_MEMBER_BYTES = 128 << 20
MAX_TOTAL_BYTES = 512 << 20


class Archive:
    """A zip archive in memory.

    Raises
    ------
    UnreadableError
        Everywhere, if it is damaged, encrypted or unpacks to too much.
    """

    def __init__(self, data: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
            raise UnreadableError(
                f"is damaged: its archive cannot be opened ({_reason(error)}); get it again"
            ) from None
        self._packed_bytes = len(data)
        self._members = {info.filename: info for info in self._zip.infolist()}
        self._read_bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def names(self) -> list[str]:
        return list(self._members)

    def size(self, name: str) -> int:
        """Bytes that a member claims to unpack to."""
        return self._members[name].file_size

    def read(self, name: str) -> bytes:
        """Bytes of a member."""
        info = self._members.get(name)
        if info is None:
            raise UnreadableError(f"is damaged: it holds no {name[:200]}; get it again")
        if info.flag_bits & 1:
            raise UnreadableError("is encrypted with a password; save a copy without one")
        self._read_bytes += info.file_size
        if info.file_size > MAX_MEMBER_BYTES or self._read_bytes > MAX_TOTAL_BYTES:
            raise UnreadableError(
                f"unpacks to more than {max(info.file_size, self._read_bytes) >> 20:,} MiB from "
                f"{self._packed_bytes:,} bytes (a zip bomb?), so it is not read"
            )
        try:
            return self._zip.read(info)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError) as error:
            raise UnreadableError(
                f"is damaged: {name[:200]} in it cannot be unpacked ({_reason(error)}); get it again"
            ) from None

    def xml(self, name: str) -> ElementTree.Element:
        """A member as a tree, if it is well-formed XML that defines no entities."""
        data = self.read(name)
        check_xml(data, name)
        return ElementTree.fromstring(data)


def check_xml(data: bytes, name: str) -> None:
    """Refuse XML that is malformed, or that defines entities (which a document's parts never need)."""

    def refuse(*_: object) -> None:
        raise UnreadableError(
            f"defines XML entities in {name[:200]}, which can blow up memory; it is not read"
        )

    parser = expat.ParserCreate()
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise UnreadableError(f"is damaged: {name[:200]} in it is no XML ({error}); get it again") from None


def resolve(base: str, reference: str) -> str:
    """Name of the member that `reference` means in the member `base`, without its fragment."""
    from urllib.parse import unquote

    return posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(reference.partition("#")[0])))


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
