"""The cache folder: where it is, and that no interruption, neighbour or full disk leaves half an entry."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from magicpig_cli.errors import MagicPigError, UsageError
from magicpig_cli.models import cachedir

ENTRY = "models/thing-1"


def make(notices: list[str] | None = None) -> None:
    with cachedir.new_entry(ENTRY, 1000, (notices if notices is not None else []).append) as partial:
        if partial is not None:
            (partial / "a.bin").write_bytes(b"x" * 1000)


def test_an_entry_appears_whole(cache):
    assert cachedir.find_cached(ENTRY) is None
    with cachedir.new_entry(ENTRY, 1000, lambda notice: None) as partial:
        assert partial is not None
        (partial / "a.bin").write_bytes(b"x")
        assert cachedir.find_cached(ENTRY) is None
    assert cachedir.find_cached(ENTRY) == cache / ENTRY
    assert sorted(path.name for path in (cache / "models").iterdir() if path.is_dir()) == ["thing-1"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError, MagicPigError])
def test_a_failure_leaves_nothing(fault, cache):
    def fail():
        with cachedir.new_entry(ENTRY, 1000, lambda notice: None) as partial:
            (partial / "a.bin").write_bytes(b"x")
            raise fault("x")

    with pytest.raises(fault):
        fail()
    assert [path for path in cache.rglob("*") if path.is_dir()] == [cache / "models"]
    make()
    assert cachedir.find_cached(ENTRY)


def test_what_a_killed_process_left_is_removed(cache):
    code = (
        "import os\nfrom magicpig_cli.models.cachedir import new_entry\n"
        f"with new_entry({ENTRY!r}, 1, print) as partial:\n"
        "    (partial / 'half').write_bytes(b'x' * 1000)\n    os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 9
    assert [path.name for path in cache.rglob("half")] == ["half"]
    assert cachedir.find_cached(ENTRY) is None
    make()
    assert list(cache.rglob("half")) == []
    assert cachedir.find_cached(ENTRY)


def test_two_at_once_make_it_once(cache):
    made, notices = [], []
    entered, noticed = threading.Event(), threading.Event()

    def notice(text):
        notices.append(text)
        noticed.set()

    def slowly():
        with cachedir.new_entry(ENTRY, 1, notice) as partial:
            entered.set()
            noticed.wait(60)
            made.append(partial)

    first = threading.Thread(target=slowly)
    first.start()
    entered.wait(60)
    with cachedir.new_entry(ENTRY, 1, notice) as partial:
        made.append(partial)
    first.join()
    assert made[0] is not None
    assert made[1] is None
    assert "another magicpig is preparing thing-1" in notices[0]


def test_a_full_disk_is_told_with_numbers(cache):
    with pytest.raises(MagicPigError, match=r"full: [\d,]+ MB are needed, [\d,]+ MB are free"):  # noqa: SIM117
        with cachedir.new_entry(ENTRY, 1 << 60, lambda notice: None):
            pass
    with pytest.raises(MagicPigError, match="is full"):  # noqa: SIM117
        with cachedir.new_entry(ENTRY, 1000, lambda notice: None):
            raise OSError(errno.ENOSPC, "No space left on device")
    assert cachedir.find_cached(ENTRY) is None


def test_a_named_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MAGICPIG_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UsageError, match="MAGICPIG_CACHE"):
        make()


def test_without_a_home_a_private_temporary_folder_is_used_and_said(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.delenv("MAGICPIG_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    notices: list[str] = []
    make(notices)
    assert len(notices) == 1
    assert "cannot be written" in notices[0]
    entry = cachedir.find_cached(ENTRY)
    assert entry is not None
    assert entry.is_relative_to(tmp_path / "tmp")
    assert entry.parents[1].stat().st_mode & 0o077 == 0


def test_a_fallback_that_others_may_write_is_not_trusted(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.delenv("MAGICPIG_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    planted = tmp_path / f"magicpig-{os.getuid()}"
    (planted / ENTRY).mkdir(parents=True)
    planted.chmod(0o777)
    assert cachedir.find_cached(ENTRY) is None
    with pytest.raises(MagicPigError, match="cannot be written"):
        make()


def test_a_read_only_cache_serves_what_it_has(cache):
    make()
    for path in (cache, cache / "models"):
        path.chmod(0o500)
    try:
        assert cachedir.find_cached(ENTRY) == cache / ENTRY
    finally:
        for path in (cache, cache / "models"):
            path.chmod(0o700)


def test_the_folder_is_the_users_cache_or_as_configured(monkeypatch, tmp_path):
    monkeypatch.setenv("MAGICPIG_CACHE", "~/somewhere")
    assert cachedir.cache_root() == Path("~/somewhere").expanduser()
    monkeypatch.delenv("MAGICPIG_CACHE")
    assert cachedir.cache_root().name == "magicpig"
