"""One source, read: the value that travels from the readers to the prompt."""

from __future__ import annotations

from dataclasses import dataclass

from magicpig_cli.documents.parts import Part, PartInfo


@dataclass(frozen=True, slots=True)
class Document:
    """The text of one source.

    Attributes
    ----------
    source : str
        The name as given (`standard input` for `-`), safe to print on one line.
    text : str
        What it says; lines end with a single newline character, no byte order mark.
    encoding : str
        The encoding it was read in, such as `utf-8` or `windows-1252`; of a binary format its name, such
        as `pdf`.
    notices : tuple of str
        What a person should know of how it was read, one sentence each.
    heading : str
        The line that tells this source from the one before it, with what parts it from that text; empty of
        the first.
    parts : tuple of Part
        Headings, chapters, pages: what the reader found.
    part : PartInfo or None
        What of the source was asked for, where `text` is not all of it.
    """

    source: str
    text: str
    encoding: str
    notices: tuple[str, ...] = ()
    heading: str = ""
    parts: tuple[Part, ...] = ()
    part: PartInfo | None = None

    @property
    def text_with_heading(self) -> str:
        """The text as it enters the prompt: under a line with its name, if another stands before it."""
        return f"{self.heading}\n{self.text}" if self.heading else self.text
