"""Where fetched and unpacked things are kept on this machine, and what happens if they cannot be.

The folder is the user's cache folder or `MAGICPIG_CACHE`. Entries are made under a temporary name and
renamed when complete, under a lock, so an interruption or a second process never leaves half a model.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from magicpig_cli.errors import MagicPigError, UsageError

VARIABLE = "MAGICPIG_CACHE"
_PARTIAL = ".partial-"

Notice = Callable[[str], None]


def cache_root() -> Path:
    """The cache folder as configured; it need not exist, nor be writable."""
    configured = os.environ.get(VARIABLE)
    if configured:
        return Path(os.path.expanduser(configured)).absolute()
    from platformdirs import user_cache_path

    return user_cache_path("magicpig", appauthor=False)


def find_cached(relative: str) -> Path | None:
    """A complete entry, such as `models/NAME`, or None."""
    return next((root / relative for root in _roots() if (root / relative).exists()), None)


def writable_root(notice: Notice) -> Path:
    """A cache folder that exists and can be written.

    Where the user's cache folder cannot be (read-only, no home), a private folder among the temporary
    files takes its place, and a notice says so.

    Raises
    ------
    UsageError
        If the folder that `MAGICPIG_CACHE` names cannot be written.
    MagicPigError
        If there is no place at all.
    """
    root = cache_root()
    reason = _why_not_writable(root)
    if reason is None:
        return root
    if os.environ.get(VARIABLE):
        raise UsageError(
            f"the cache folder {root} (from {VARIABLE}) cannot be written: {reason}; name another one"
        )
    fallback = _fallback()
    if _why_not_writable(fallback) is None and _is_private(fallback):
        notice(
            f"the cache folder {root} cannot be written ({reason}); {fallback} is used instead, "
            f"or set {VARIABLE} to a lasting place"
        )
        return fallback
    raise MagicPigError(
        f"the cache folder {root} cannot be written: {reason}; set {VARIABLE} to a folder that can"
    )


@contextmanager
def new_entry(relative: str, n_bytes: int, notice: Notice) -> Iterator[Path | None]:
    """Make a cache entry: a temporary folder that becomes `relative` when the block ends well.

    Parameters
    ----------
    relative : str
        Such as `models/NAME`.
    n_bytes : int
        Space needed, checked first.
    notice : callable

    Yields
    ------
    Path or None
        None if another process has made the entry meanwhile.

    Raises
    ------
    MagicPigError
        If the disk is full.
    """
    from filelock import FileLock, Timeout

    root = writable_root(notice)
    final = root / relative
    with disk_errors(root, n_bytes):
        final.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(final.parent / f"{final.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            notice(f"another magicpig is preparing {final.name}; waiting for it")
            lock.acquire(poll_interval=0.2)
        try:
            if final.exists():
                yield None
                return
            prefix = f"{_PARTIAL}{final.name}-"
            for left_behind in final.parent.glob(f"{prefix}*"):  # by a process that was killed
                shutil.rmtree(left_behind, ignore_errors=True)
            _require_space(root, n_bytes)
            partial = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
            try:
                yield partial
                _sync(partial)
                partial.rename(final)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        finally:
            lock.release()


def remove_entry(path: Path) -> None:
    """Remove a damaged entry, so that it can be made anew."""
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def disk_errors(root: Path, n_bytes: int) -> Iterator[None]:
    """A full disk or one that fails, in one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise MagicPigError(_full(root, n_bytes)) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOLCK):
            raise MagicPigError(
                f"the cache folder {root} cannot be used: {error.strerror}; set {VARIABLE} to another folder"
            ) from error
        raise


def disk_full(root: Path, n_bytes: int) -> MagicPigError:
    """The error for a full disk, where another program reported it."""
    return MagicPigError(_full(root, n_bytes))


def _require_space(root: Path, n_bytes: int) -> None:
    if shutil.disk_usage(root).free < n_bytes:
        raise MagicPigError(_full(root, n_bytes))


def _full(root: Path, n_bytes: int) -> str:
    try:
        free = f"{shutil.disk_usage(root).free / 1e6:,.0f} MB"
    except OSError:
        free = "not enough"
    return (
        f"the disk of the cache folder {root} is full: {n_bytes / 1e6:,.0f} MB are needed, {free} are free; "
        f"free some space, or set {VARIABLE} to a folder on another disk"
    )


def _roots() -> tuple[Path, ...]:
    if os.environ.get(VARIABLE) or not _is_private(_fallback()):
        return (cache_root(),)
    return cache_root(), _fallback()


def _fallback() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return Path(tempfile.gettempdir()) / f"magicpig-{user}"


def _is_private(folder: Path) -> bool:
    """Whether the folder is this user's alone: in a shared place another may have made it first."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return folder.is_dir()
    return (
        folder.is_dir()
        and not folder.is_symlink()
        and status.st_uid == os.getuid()
        and not status.st_mode & 0o022
    )


def _why_not_writable(folder: Path) -> str | None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return None  # said with numbers when space is asked for
        return (error.strerror or str(error)).lower()


def _sync(folder: Path) -> None:
    """Bring the files to the disk, so that the rename can't survive a power cut that they did not."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
