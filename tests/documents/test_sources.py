"""Files, standard input and folders: what is read, in which order, and what is refused by name."""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from magicpig_cli.documents import read_sources, sources
from magicpig_cli.documents.folder import list_folder
from magicpig_cli.errors import DoesNotFit, UsageError

needs_rights = pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() == 0, reason="this user may read everything"
)


def refusal(sources: list[str], stdin: io.BytesIO | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        read_sources(sources, stdin)
    assert "\n" not in caught.value.sentence
    return caught.value.sentence


def test_a_single_source_has_no_heading(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"One.\r\nTwo.\r")
    (document,) = read_sources([str(path)], None)
    assert document.text == "One.\nTwo.\n"
    assert document.text_with_heading == document.text
    assert (document.source, document.encoding, document.notices) == (str(path), "utf-8", ())


def test_several_sources_stand_in_order_with_both_names_between(tmp_path):
    (tmp_path / "b.txt").write_text("B without a line end")
    (tmp_path / "a.txt").write_text("A\n")
    names = [str(tmp_path / "b.txt"), "-", str(tmp_path / "a.txt")]
    documents = read_sources(names, io.BytesIO(b"piped\n"))
    assert [d.source for d in documents] == [names[0], "standard input", names[2]]
    whole = "".join(d.text_with_heading for d in documents)
    first, second = (
        f"\n==> end of {before}, beginning of {after} <==\n"
        for before, after in ((names[0], "standard input"), ("standard input", names[2]))
    )
    assert whole == f"B without a line end\n{first}piped\n{second}A\n"
    # The first stands as it does alone, so that an index of it serves for several.
    (alone,) = read_sources(names[:1], None)
    assert documents[0].text_with_heading == alone.text_with_heading


def test_a_file_and_a_pipe_with_the_same_bytes_read_the_same(tmp_path):
    data = "Caf\u00e9 \u2013 na\u00efve\r\n".encode("cp1252")
    path = tmp_path / "old.txt"
    path.write_bytes(data)
    (from_file,), (piped,) = read_sources([str(path)], None), read_sources(["-"], io.BytesIO(data))
    assert (from_file.text, from_file.encoding) == (piped.text, piped.encoding)
    assert piped.notices[0].startswith("standard input is not UTF-8; read as Windows-1252")


@pytest.mark.parametrize(
    "data", [b" \n\t\r\n\xc2\xa0\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b"\xe2\x80\x8b\n"]
)
def test_blank_sources_are_refused(data):
    assert "nothing to read" in refusal(["-"], io.BytesIO(data))


def test_empty_sources_are_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    assert "empty.txt is empty" in refusal([str(tmp_path / "empty.txt")])
    assert "standard input is empty" in refusal(["-"], io.BytesIO(b""))


class Endless(io.RawIOBase):
    """`yes | magicpig ask -`."""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return b"y\n" * (size // 2)


def test_what_has_no_end_is_refused_within_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MOST_BYTES", 3_000_000)
    with pytest.raises(DoesNotFit, match="standard input holds more than 3 MB"):
        read_sources(["-"], Endless())
    (tmp_path / "long.txt").write_bytes(b"x\n" * 2_000_000)
    with pytest.raises(DoesNotFit, match=r"long.txt holds more than 3 MB"):
        read_sources([str(tmp_path / "long.txt")], None)
    (tmp_path / "short.txt").write_text("short\n")
    (document,) = read_sources([str(tmp_path)], None)
    assert "long.txt (holds more than 3 MB)" in document.notices[0]
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"x\n" * 1_000_000)
    with pytest.raises(DoesNotFit, match="hold more than 3 MB of text"):
        read_sources([str(tmp_path)], None)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="no /proc")
def test_a_folder_of_the_system_is_refused_within_a_bound():
    for path in ("/proc", "/proc/self"):
        assert f"the folder {path} holds more than 20,000 entries" in refusal([path])


def test_a_folder_that_nests_for_ever_ends(tmp_path):
    deep = tmp_path
    for _ in range(150):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "lost.txt").write_text("deep\n")
    (tmp_path / "found.txt").write_text("shallow\n")
    files, skipped = list_folder(str(tmp_path))
    assert files == [str(tmp_path / "found.txt")]
    assert [reason for _, reason in skipped] == ["nested too deeply"]


def test_nothing_named_standard_input_twice_or_closed():
    assert "nothing to read" in refusal([])
    assert "only once" in refusal(["-", "-"], io.BytesIO(b"x"))
    assert "closed" in refusal(["-"], None)
    assert "empty name" in refusal([""])


def test_a_missing_file_names_its_nearest_neighbours(tmp_path):
    (tmp_path / "Chapter-03.md").write_text("x")
    sentence = refusal([str(tmp_path / "chapter-3.md")])
    assert f"did you mean {tmp_path / 'Chapter-03.md'}?" in sentence
    assert "its folder" in refusal([str(tmp_path / "nowhere" / "a.txt")])
    assert "no file" in refusal([str(tmp_path / "Chapter-03.md" / "a.txt")])
    (tmp_path / "link").symlink_to("gone.txt")
    assert "link to gone.txt, which does not exist" in refusal([str(tmp_path / "link")])


def test_an_impossible_name_is_refused_in_one_sentence():
    assert "cannot be read" in refusal(["What is the gate code? " * 50])


def test_a_name_that_would_steer_a_terminal_is_made_harmless(tmp_path):
    path = os.fsencode(tmp_path) + b"/a\x1b[31m\n\xff.txt"
    Path(os.fsdecode(path)).write_text("x\n")
    (document,) = read_sources([os.fsdecode(path)], None)
    assert document.source.isprintable()
    document.source.encode()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_read_to_its_end(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = "word " * 100_000
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    (document,) = read_sources([str(pipe)], None)
    writer.join()
    assert document.text == text


@pytest.mark.skipif(sys.platform != "linux", reason="names of devices differ")
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/urandom"])
def test_devices_are_refused_unread(device):
    assert "is a device" in refusal([device])


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no such sockets here")
def test_a_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        assert "socket" in refusal(["s"])


@needs_rights
def test_a_file_without_rights_is_refused(tmp_path):
    path = tmp_path / "private.txt"
    path.write_text("x")
    path.chmod(0)
    assert "permission denied" in refusal([str(path)])


def test_binary_files_are_refused_with_what_to_do(tmp_path):
    path = tmp_path / "slides.ppt"
    path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500))
    sentence = refusal([str(path)])
    assert "is an old Office document" in sentence
    assert "save it as PDF, docx or text first" in sentence
    path.write_bytes(bytes(range(256)))
    assert "not a text" in refusal([str(path)])


def test_a_file_that_grows_while_it_is_read_is_told(tmp_path, monkeypatch):
    path = tmp_path / "log.txt"
    path.write_bytes(b"line\n" * 10)
    real = os.fstat
    calls = []

    def growing(fd):
        if calls:
            with path.open("ab") as file:
                file.write(b"more\n")
        calls.append(fd)
        return real(fd)

    monkeypatch.setattr(os, "fstat", growing)
    (document,) = read_sources([str(path)], None)
    monkeypatch.undo()
    assert "changed while it was read" in document.notices[0]
    assert document.text.startswith("line\n" * 10)


@pytest.fixture
def folder(tmp_path) -> Path:
    root = tmp_path / "docs"
    for name in (".git", "node_modules/x", "sub/deeper", "sub2"):
        (root / name).mkdir(parents=True)
    for name in ("b.txt", "A.md", "sub/c.txt", "sub/deeper/d.py", "sub2/e"):
        (root / name).write_text(f"{name}\n")
    (root / ".git" / "config").write_text("secret\n")
    (root / ".env").write_text("secret\n")
    (root / "node_modules" / "x" / "index.js").write_text("noise\n")
    (root / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50))
    (root / "empty.txt").touch()
    (root / "yarn.lock").write_text("noise\n" * 1000)
    (root / "sub" / "loop").symlink_to(root)
    (root / "gone").symlink_to("nowhere")
    return root


def test_a_folder_gives_its_text_files_sorted_and_names_what_it_skips(folder):
    documents = read_sources([str(folder)], None)
    names = ["A.md", "b.txt", "sub/c.txt", "sub/deeper/d.py", "sub2/e"]
    assert [os.path.relpath(d.source, folder) for d in documents] == names
    assert [d.text.strip() for d in documents] == names
    (notice,) = documents[0].notices
    assert "5 text files read, 8 entries skipped" in notice
    for skipped in (
        ".git (hidden)",
        ".env (hidden)",
        "node_modules (installed packages)",
        "picture.png (a PNG image)",
        "empty.txt (empty)",
        "yarn.lock (lock file)",
        "sub/loop (link to a folder that is read already)",
        "gone (broken link)",
    ):
        assert skipped in notice
    assert not any("secret" in d.text for d in documents)


def test_a_folder_with_one_text_has_no_heading_and_a_folder_without_any_is_refused(tmp_path):
    assert "holds no text file" in refusal([str(tmp_path)])
    (tmp_path / "p.gif").write_bytes(b"GIF89a\0\0\0")
    assert "p.gif (a GIF image)" in refusal([str(tmp_path)])
    (tmp_path / "a.txt").write_text("x\n")
    (document,) = read_sources([str(tmp_path)], None)
    assert document.text_with_heading == "x\n"


def test_very_many_skipped_entries_are_counted(tmp_path):
    (tmp_path / "a.txt").write_text("x\n")
    for i in range(60):
        (tmp_path / f".h{i}").touch()
    (document,) = read_sources([str(tmp_path)], None)
    assert "60 entries skipped" in document.notices[0]
    assert "and 20 more" in document.notices[0]


@needs_rights
def test_unreadable_parts_of_a_folder_are_named(folder):
    (folder / "b.txt").chmod(0)
    (folder / "sub2").chmod(0)
    documents = read_sources([str(folder)], None)
    assert "b.txt (cannot be read" in documents[0].notices[0]
    assert "sub2 (permission denied)" in documents[0].notices[0]
    (folder / "sub2").chmod(0o700)
