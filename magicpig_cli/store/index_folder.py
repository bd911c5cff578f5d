"""The folder of indexes: finding, taking, removing and bounding them, with other processes at work in it.

An index is a sub-folder named by its key. It appears by one rename, when it is whole, and goes by one
rename, when nobody uses it; in between its files never change.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from magicpig_cli.errors import DamagedFile, UsageError
from magicpig_cli.store.index_meta import (
    CHAIN_TOKENS,
    IndexHead,
    ModelKey,
    read_checked,
    read_head,
    token_chain,
)

# The sub-folder of the cache folder.
INDEXES = "indexes"
# The note in a partial index that tells where its reading was interrupted.
RESUME = "resume.json"
LIMIT_VARIABLE = "MAGICPIG_CACHE_LIMIT"
# Of the disk space that is free or taken by indexes.
SHARE_OF_DISK = 0.2
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_PARTIAL = ".partial-"
_REMOVED = ".removed-"
_LOCKS = ".locks"


@dataclass(slots=True)
class InUse:
    """An index that must not be removed meanwhile; `release` it."""

    path: Path
    _lock: FileLock = field(repr=False)

    def release(self) -> None:
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class PartialIndex:
    """A reading that was interrupted, or has noted where it stands, as far as a listing tells of it."""

    key: str
    path: Path
    model_id: str
    documents: tuple[str, ...]
    n_tokens: int
    n_bytes: int
    last_used: float
    is_going_on: bool


@dataclass(frozen=True, slots=True)
class Unusable:
    """An index or interrupted reading that is damaged or of another version: it serves nobody."""

    key: str
    path: Path
    n_bytes: int
    last_used: float
    documents: tuple[str, ...] = ()


Entry = IndexHead | PartialIndex | Unusable


@dataclass(frozen=True, slots=True)
class Contents:
    """All that takes disk space, by kind; indexes the last used first."""

    heads: list[IndexHead]
    partials: list[PartialIndex]
    unusable: list[Unusable]

    @property
    def n_bytes(self) -> int:
        return sum(entry.n_bytes for entry in self.by_use())

    def by_use(self) -> list[Entry]:
        """First what is given up first: the unusable, then the longest unused."""
        served: list[Entry] = [*self.heads, *self.partials]
        return [*self.unusable, *sorted(served, key=lambda entry: entry.last_used)]


class IndexFolder:
    """Parameters: `root`, which need not exist until something is written."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self) -> bool:
        """Make the folder, private to the user; True if it was not there before."""
        try:
            self.root.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            self._locks.mkdir(mode=0o700, exist_ok=True)
            return False
        self._locks.mkdir(mode=0o700, exist_ok=True)
        return True

    def heads(self) -> tuple[list[IndexHead], list[tuple[str, DamagedFile]]]:
        """Every index, the last used first; and the keys of those that are damaged."""
        heads: list[IndexHead] = []
        damaged: list[tuple[str, DamagedFile]] = []
        for folder in self._folders():
            try:
                heads.append(read_head(folder))
            except DamagedFile as error:
                damaged.append((folder.name, error))
            except FileNotFoundError:
                if folder.exists():  # else another process has just removed it
                    damaged.append((folder.name, DamagedFile(f"{folder} has lost its files")))
            except OSError as error:  # one that cannot be read must not cost the others
                reason = (error.strerror or str(error)).lower()
                damaged.append((folder.name, DamagedFile(f"{folder} cannot be read: {reason}")))
        return sorted(heads, key=lambda head: -head.last_used), damaged

    def nearest(self, model: ModelKey, token_ids: np.ndarray) -> list[tuple[IndexHead, int]]:
        """Indexes of the same model that begin as these tokens do, the longest likeness first.

        Returns
        -------
        list of (IndexHead, int)
            With the number of tokens that are certainly alike, a multiple of CHAIN_TOKENS or all.
        """
        chain = token_chain(token_ids)
        found = []
        for head in self.heads()[0]:
            if head.model.fingerprint == model.fingerprint:
                alike = _common_length(chain, head.chain)
                if alike:
                    found.append((head, alike))
        return sorted(found, key=lambda pair: -pair[1])

    def take(self, key: str) -> InUse | None:
        """Use an index: nobody removes it until it is released. None if there is none of that key."""
        folder = self.root / key
        if not folder.is_dir():
            return None
        self.create()
        with self._changing():
            if not folder.is_dir():
                return None
            name = f"{key}.use-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            lock = FileLock(self._locks / name, mode=0o600, thread_local=False)
            lock.acquire(timeout=0)
        with contextlib.suppress(OSError):  # a folder that cannot be written can still be read
            os.utime(folder / "index.json")
        return InUse(folder, lock)

    def remove(self, key: str) -> bool:
        """Remove an index; False if it is in use, or there is none."""
        folder = self.root / key
        if not folder.is_dir():
            return False
        with self._changing():
            if self._is_in_use(key):
                return False
            doomed = self.root / f"{_REMOVED}{key}-{uuid.uuid4().hex[:8]}"
            try:
                folder.rename(doomed)
            except FileNotFoundError:
                return False
        shutil.rmtree(doomed, ignore_errors=True)
        return True

    def is_in_use(self, key: str) -> bool:
        """As far as locks tell: where none can be written, nothing is removed either."""
        try:
            with self._changing():
                return self._is_in_use(key)
        except OSError:
            return False

    def contents(self) -> Contents:
        """What lies here: indexes, interrupted readings, and what is damaged or of another version."""
        heads, damaged = self.heads()
        unusable = [Unusable(key, self.root / key, *_measured(self.root / key)) for key, _ in damaged]
        partials = []
        for entry in self._partials():
            if isinstance(entry, PartialIndex):
                partials.append(entry)
            else:
                unusable.append(entry)
        return Contents(heads, partials, unusable)

    def evict(self, limit_bytes: int, keep: str) -> list[Entry]:
        """Remove indexes and interrupted readings, the longest unused first, until the rest fits a limit.

        Never the one named `keep`, nor one in use.
        """
        contents = self.contents()
        total = contents.n_bytes
        removed = []
        for entry in contents.by_use():
            if total <= limit_bytes:
                break
            where = self.root / entry.key if isinstance(entry, IndexHead) else entry.path
            with contextlib.suppress(OSError):  # one that cannot be removed leaves the next ones
                if entry.key != keep and self.remove_folder(where):
                    total -= entry.n_bytes
                    removed.append(entry)
        return removed

    def clean(self) -> None:
        """Remove what killed processes left behind: unfinished copies and removals, locks of nobody."""
        if not self.root.is_dir():
            return
        for doomed in self.root.glob(f"{_REMOVED}*"):
            shutil.rmtree(doomed, ignore_errors=True)
        for folder in self.root.glob(f"{_PARTIAL}*"):
            key = folder.name.removeprefix(_PARTIAL)
            lock = self.writing_lock(key)
            # One that another user left must not cost the others.
            with contextlib.suppress(Timeout, OSError), lock.acquire(timeout=0):
                if not (folder / RESUME).exists():
                    shutil.rmtree(folder, ignore_errors=True)
        with self._changing():
            self._is_in_use("*")

    def partials(self) -> list[PartialIndex]:
        """Readings that were interrupted, and those going on that have noted where they stand."""
        return self.contents().partials

    def _partials(self) -> Iterator[PartialIndex | Unusable]:
        for folder in sorted(self.root.glob(f"{_PARTIAL}*")):
            key = folder.name.removeprefix(_PARTIAL)
            n_bytes, last_used = _measured(folder, RESUME)
            try:
                body = read_checked(folder / RESUME)
                told = body["model"], tuple(body["documents"]), body["n_tokens"]
                yield PartialIndex(key, folder, *told, n_bytes, last_used, self._is_being_written(key))
            except FileNotFoundError:
                continue  # being written, and nothing noted yet
            except (DamagedFile, OSError, KeyError):
                yield Unusable(key, folder, n_bytes, last_used)

    def remove_partial(self, key: str) -> bool:
        """Remove an interrupted reading; False if it is going on just now."""
        with contextlib.suppress(Timeout), self.writing_lock(key).acquire(timeout=0):
            shutil.rmtree(self.partial(key), ignore_errors=True)
            return True
        return False

    def remove_folder(self, folder: Path) -> bool:
        """Remove an index or an interrupted reading, whichever lies there; False if it is in use, or gone."""
        if folder.name.startswith(_PARTIAL):
            return self.remove_partial(folder.name.removeprefix(_PARTIAL))
        return self.remove(folder.name)

    def partial(self, key: str) -> Path:
        """Where the index of that key is being written."""
        return self.root / f"{_PARTIAL}{key}"

    def writing_lock(self, key: str) -> FileLock:
        """Held by the one process that writes the index of that key."""
        # Not bound to a thread: it is released where the writing ends.
        return FileLock(self._locks / f"{key}.write", mode=0o600, thread_local=False)

    def _is_being_written(self, key: str) -> bool:
        lock = self.writing_lock(key)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        except OSError:  # where nothing can be written, nobody writes
            return False
        lock.release()
        return False

    @property
    def _locks(self) -> Path:
        return self.root / _LOCKS

    def _folders(self) -> list[Path]:
        if not self.root.is_dir():
            return []
        return [p for p in self.root.iterdir() if p.is_dir() and not p.name.startswith(".")]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """One process at a time takes or removes: each for a moment only."""
        self._locks.mkdir(mode=0o700, exist_ok=True)
        with FileLock(self._locks / "folder", mode=0o600):
            yield

    def _is_in_use(self, key: str) -> bool:
        """Whether some process uses it; locks of processes that are gone are removed on the way."""
        used = False
        for path in self._locks.glob(f"{key}.use-*"):
            lock = FileLock(path, mode=0o600)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                used = True
                continue
            lock.release()
            path.unlink(missing_ok=True)
        return used


def _measured(folder: Path, dated: str = ".") -> tuple[int, float]:
    """Bytes of a folder's files and when one of them last changed, as far as they can be read."""
    try:
        return sum(file.stat().st_size for file in folder.iterdir()), (folder / dated).stat().st_mtime
    except OSError:
        return 0, 0.0


def _common_length(chain: tuple[str, ...], other: tuple[str, ...]) -> int:
    alike = 0
    for mine, theirs in zip(chain, other, strict=False):
        if mine != theirs:
            break
        alike += CHAIN_TOKENS
    return alike


def size_limit(root: Path) -> int:
    """Bytes that all indexes together may take.

    Raises
    ------
    UsageError
        If `MAGICPIG_CACHE_LIMIT` is set and no size.
    """
    text = os.environ.get(LIMIT_VARIABLE, "").strip().lower().removesuffix("b")
    if text:
        unit = text[-1] if text[-1] in _UNITS else ""
        try:
            limit = int(float(text.removesuffix(unit)) * _UNITS[unit])
        except (ValueError, OverflowError):
            limit = -1
        if limit < 0:
            raise UsageError(
                f"{LIMIT_VARIABLE} is {os.environ[LIMIT_VARIABLE]!r}, but must be a size such as 20GB"
            )
        return limit
    existing = next(path for path in (root, *root.parents) if path.exists())
    return int(SHARE_OF_DISK * (shutil.disk_usage(existing).free + IndexFolder(root).contents().n_bytes))
