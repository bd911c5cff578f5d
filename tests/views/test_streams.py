"""Bytes to file descriptors, in real pipes and files."""

from __future__ import annotations

import os
import pty
import threading
import time
from collections.abc import Iterator

import pytest

from magicpig_cli.views.streams import Messages, Output, OutputError, ReaderGone, Stream
from magicpig_cli.views.text import harmless


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue


def test_text_goes_out_at_once(pipe: tuple[int, int]) -> None:
    Output(Stream(pipe[1], "utf-8")).write("café 漢")
    assert os.read(pipe[0], 100) == "café 漢".encode()


def test_a_reader_that_left(pipe: tuple[int, int]) -> None:
    stream = Stream(pipe[1], "utf-8")
    assert stream.has_reader
    os.close(pipe[0])
    assert not stream.has_reader
    with pytest.raises(ReaderGone):
        Output(stream).write("x")


def test_a_slow_reader_gets_everything(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    text, got = "0123456789" * 50_000, bytearray()

    def read() -> None:
        while len(got) < len(text):
            time.sleep(0.001)
            got.extend(os.read(pipe[0], 30_000))

    thread = threading.Thread(target=read)
    thread.start()
    Output(Stream(pipe[1], "utf-8")).write(text)
    thread.join()
    assert got.decode() == text


def test_an_interruption_ends_waiting_for_a_reader_that_sleeps(pipe: tuple[int, int]) -> None:
    begun = time.monotonic()
    with pytest.raises(ReaderGone):
        Output(Stream(pipe[1], "utf-8"), give_up=lambda: time.monotonic() > begun + 0.3).write(
            "x" * 1_000_000
        )
    assert time.monotonic() - begun < 60


def test_a_full_disk_is_a_sentence() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OutputError, match="No space left on device"):
        Output(Stream(fd, "utf-8")).write("x")
    Messages(Stream(fd, "utf-8")).line("nobody hears this")
    os.close(fd)


def test_closed_streams() -> None:
    Messages(Stream(None, "utf-8")).line("nobody hears this")
    with pytest.raises(ReaderGone):
        Output(Stream(None, "utf-8")).write("x")


def test_what_an_encoding_lacks_is_spelled_out(pipe: tuple[int, int]) -> None:
    Output(Stream(pipe[1], "iso8859-1")).write("café — 漢")
    assert os.read(pipe[0], 100) == b"caf\xe9 \\u2014 \\u6f22"


def test_a_terminal_gets_no_control_sequences_a_pipe_gets_the_text(pipe: tuple[int, int]) -> None:
    text = "a\x1b]0;title\x07b\x9b2J\tc\n"
    Output(Stream(pipe[1], "utf-8")).write(text)
    assert os.read(pipe[0], 100).decode() == text
    master, slave = pty.openpty()
    Output(Stream(slave, "utf-8")).write(text)
    seen = os.read(master, 200).decode()
    assert "\x1b" not in seen
    assert "\x9b" not in seen
    assert "a\\x1b]0;title\\x07b\\x9b2J" in seen
    os.close(master)
    os.close(slave)


def test_harmless_leaves_people_s_text_alone() -> None:
    for text in ("שלום עולם", "नमस्ते", "👨‍👩‍👧‍👦 🇳🇴", "a\tb\nc", "é"):
        assert harmless(text) == text
    assert harmless("\u202egnp.exe") == "\\u202egnp.exe"
