"""What a reader of a format is: bytes in, text with its parts out.

A reader knows nothing of files, models or tokens. What it leaves out on purpose it says in a
remark; what it cannot read whole it refuses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

from magicpig_cli.documents.parts import Part

EXTRA = "pip install 'magicpig-cli[documents]'"


class UnreadableError(ValueError):
    """The bytes cannot be read in their format; the message stands after the source's name."""


@dataclass(frozen=True, slots=True)
class Text:
    """What a reader made of one source.

    Attributes
    ----------
    text : str
        Lines end with a single newline character.
    encoding : str
        The encoding of a text, such as `utf-8`, or the name of a binary format, such as `pdf`.
    parts : tuple of Part
    remarks : tuple of str
        What a person should know of how it was read; each stands after the source's name.
    """

    text: str
    encoding: str
    parts: tuple[Part, ...] = ()
    remarks: tuple[str, ...] = ()


class Reader(ABC):
    """Reads one format.

    Attributes
    ----------
    kind : str
        What a person calls a file of it, with its article.
    suffixes : frozenset of str
        Of file names, in small letters, with the dot.
    packages : tuple of str
        Modules of the `documents` extra that it needs.
    """

    kind: ClassVar[str]
    suffixes: ClassVar[frozenset[str]] = frozenset()
    packages: ClassVar[tuple[str, ...]] = ()

    def recognises(self, data: bytes) -> bool:
        """Whether the bytes begin as this format does and no other."""
        return False

    @abstractmethod
    def read(self, data: bytes) -> Text:
        """The text of a whole file.

        Raises
        ------
        UnreadableError, NotTextError
            If it is damaged, encrypted, without text, or not of this format.
        """

    def check_installed(self) -> None:
        """Nothing, if the packages that it needs are there.

        Raises
        ------
        UnreadableError
            Naming the extra to install.
        """
        if any(find_spec(package) is None for package in self.packages):
            raise UnreadableError(f"needs the documents extra to be read as {self.kind}: {EXTRA}")
