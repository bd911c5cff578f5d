"""Subtitles (.srt, .vtt): what is said, in order, with the time once a minute; stretches of time as parts."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import pairwise

from magicpig_cli.documents.decode import decode
from magicpig_cli.documents.parts import Mark, build_parts
from magicpig_cli.documents.readers.base import Reader, Text, UnreadableError

_TIME = r"(?:(\d{1,3}):)?(\d{1,2}):(\d{2})[.,]\d{1,3}"
_CUE = re.compile(rf"[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}[^\n]*")
_FIRST_CUE = re.compile(rf"\s*\d+[ \t]*\n{_CUE.pattern}")
_SPEAKER = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<\d[\d:.]*>|\{\\[^}]*\}")
# A stamp lets a person ask when something was said, and costs little against one for each line.
_STAMP_S = 60
_PART_S = 600


class Subtitles(Reader):
    """SubRip and WebVTT."""

    kind = "subtitles"
    suffixes = frozenset({".srt", ".vtt"})

    def recognises(self, data: bytes) -> bool:
        head = data[:4096].removeprefix(b"\xef\xbb\xbf")
        return head.startswith((b"WEBVTT\n", b"WEBVTT\r", b"WEBVTT ")) or bool(
            _FIRST_CUE.match(head.decode("utf-8", "replace").replace("\r\n", "\n"))
        )

    def read(self, data: bytes) -> Text:
        """Spoken lines; numbers, positions and colours are left out."""
        decoded = decode(data)
        pieces: list[str] = []
        marks: list[Mark] = []
        at = 0
        minute = stretch = -1
        previous = ""
        for seconds, spoken in _cues(decoded.text):
            if spoken == previous:
                continue  # the same line shown on, as captions of live speech do
            previous = spoken
            if seconds // _PART_S != stretch:
                stretch = seconds // _PART_S
                title = f"{_clock(stretch * _PART_S)} to {_clock((stretch + 1) * _PART_S)}"
                marks.append(Mark(title, 1, at, "time"))
            if seconds // _STAMP_S != minute:
                minute = seconds // _STAMP_S
                spoken = f"[{_clock(seconds)}]\n{spoken}"
            pieces.append(f"{spoken}\n")
            at += len(pieces[-1])
        if not pieces:
            raise UnreadableError(
                "holds no subtitles: no line of times (00:01:02,000 --> 00:01:04,000) in it"
            )
        text = "".join(pieces)
        return Text(text, decoded.encoding, build_parts(text, marks), decoded.remarks)


def _cues(text: str) -> Iterator[tuple[int, str]]:
    """Seconds at which each cue begins, and its lines."""
    lines = text.split("\n")
    starts = [i for i, line in enumerate(lines) if _CUE.fullmatch(line)]
    for start, end in pairwise([*starts, len(lines)]):
        match = _CUE.fullmatch(lines[start])
        assert match is not None
        body = []
        for line in lines[start + 1 : end]:
            if not line.strip():
                break
            body.append(line)
        spoken = "\n".join(filter(None, (_spoken(line) for line in body)))
        if spoken:
            yield int(match[1] or 0) * 3600 + int(match[2]) * 60 + int(match[3]), spoken


def _spoken(line: str) -> str:
    line = _SPEAKER.sub(lambda match: f"{match[1].strip()}: ", line)
    return " ".join(html.unescape(_TAG.sub("", line)).split())


def _clock(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
