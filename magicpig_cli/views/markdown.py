"""The answer of `--markdown`: rendered for the eye when it is complete, on a terminal and nowhere else."""

from __future__ import annotations

import os
from io import StringIO

from magicpig_cli.views.base import Ending
from magicpig_cli.views.screen import size_of, wants_colour
from magicpig_cli.views.streams import Output
from magicpig_cli.views.text import harmless
from magicpig_cli.views.track import Track


class RenderedAnswer:
    """Standard output on a terminal: headings, lists, tables and code as such, at the end."""

    writes_at_once = False

    def __init__(self, output: Output) -> None:
        self._output = output

    def show(self, piece: str) -> None:
        pass  # half a table is no table

    def finish(self, track: Track, ending: Ending) -> None:
        answered = ending.failure is None and not ending.interrupted
        if track.answer:
            columns = size_of(self._output.stream).columns
            self._output.styled(rendered(track.answer, columns, wants_colour()))
        elif answered:
            self._output.write("\n")


def can_render(output: Output) -> bool:
    """Whether a terminal knows bold, and has the lines and bullets of a rendered text."""
    return os.environ.get("TERM", "dumb") != "dumb" and output.stream.encoding.replace("-", "") == "utf8"


def rendered(text: str, columns: int, colour: bool) -> str:
    """Markdown as a terminal takes it, `columns` wide; nothing of `text` itself steers the terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    page = StringIO()
    console = Console(
        file=page,
        width=columns,
        force_terminal=True,
        color_system="standard" if colour else None,
        no_color=not colour,
        legacy_windows=False,
        emoji=False,
        markup=False,
        highlight=False,
    )
    # The terminal's own colours for code: they suit its background, whichever that is.
    console.print(Markdown(harmless(text), hyperlinks=False, code_theme="ansi_dark"))
    return page.getvalue()
