"""Which reader takes a source: by the first bytes where they tell, else by the name's suffix.

A format is added by its file and one line in `READERS`.
"""

from __future__ import annotations

import os

from magicpig_cli.documents.readers.base import Reader
from magicpig_cli.documents.readers.code import OtherSourceCode, SourceCode
from magicpig_cli.documents.readers.docx import Docx
from magicpig_cli.documents.readers.epub import Epub
from magicpig_cli.documents.readers.html import Html
from magicpig_cli.documents.readers.markdown import Markdown
from magicpig_cli.documents.readers.notebook import Notebook
from magicpig_cli.documents.readers.pdf import Pdf
from magicpig_cli.documents.readers.plain import PlainText
from magicpig_cli.documents.readers.subtitles import Subtitles

# Asked in this order whether they recognise the bytes.
READERS: tuple[Reader, ...] = (
    Pdf(),
    Epub(),
    Docx(),
    Html(),
    Notebook(),
    Subtitles(),
    Markdown(),
    SourceCode(),
    OtherSourceCode(),
    PlainText(),
)
_BINARY = (Pdf, Epub, Docx)
_PLAIN = READERS[-1]


def reader_for(name: str, data: bytes) -> Reader:
    """The reader of one source.

    Parameters
    ----------
    name : str
        Whose suffix counts; standard input has none.
    data : bytes

    A binary format is known by its bytes, whatever the file is called. Among texts the suffix says more
    than the bytes: a Markdown file may begin with a tag, a Python file may quote a page.
    """
    suffix = os.path.splitext(name)[1].lower()
    recognised = next((reader for reader in READERS if reader.recognises(data)), None)
    if isinstance(recognised, _BINARY):
        return recognised
    named = next((reader for reader in READERS if suffix in reader.suffixes), None)
    return named or recognised or _PLAIN
