"""Bytes to text: files, standard input and folders, in whatever format and encoding they come.

The first step on the data's way; `read_sources` hands `Document` values to the prompt.
"""

from magicpig_cli.documents.document import Document
from magicpig_cli.documents.parts import Part, PartInfo
from magicpig_cli.documents.selection import PartRequest
from magicpig_cli.documents.sources import read_sources

__all__ = ["Document", "Part", "PartInfo", "PartRequest", "read_sources"]
