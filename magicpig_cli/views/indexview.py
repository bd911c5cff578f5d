"""Standard output of `magicpig index`: where the index is, once it is whole."""

from __future__ import annotations

from magicpig_cli.views.base import Ending
from magicpig_cli.views.streams import Output
from magicpig_cli.views.track import Track


class IndexPath:
    """Writes one line at the end: the index's folder."""

    writes_at_once = False

    def __init__(self, output: Output) -> None:
        self._output = output

    def show(self, piece: str) -> None:
        pass  # there is no answer

    def finish(self, track: Track, ending: Ending) -> None:
        if track.index_path is not None and ending.failure is None and not ending.interrupted:
            self._output.write(track.index_path + "\n")
