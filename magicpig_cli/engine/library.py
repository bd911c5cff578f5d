"""Documents that were read before, found by their tokens: a disk's part in "read once, ask many times".

Stands between the engine and `store.index_*`: turns an index into a session before prefill; what
prefill computes becomes one in `keeping`. Whatever goes wrong with an index costs a notice and a new
reading, never the answer.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import numpy as np

from magicpig_cli.amounts import byte_size
from magicpig_cli.attention.session import Session
from magicpig_cli.engine.events import Notice, NotKept
from magicpig_cli.engine.keeping import IndexKeeper
from magicpig_cli.engine.restore import offer_tables, restore_layers
from magicpig_cli.errors import DamagedFile
from magicpig_cli.store.index_folder import LIMIT_VARIABLE, SHARE_OF_DISK, IndexFolder, InUse, size_limit
from magicpig_cli.store.index_meta import IndexMeta, ModelKey, index_key, read_meta
from magicpig_cli.store.index_tables import remove_tables
from magicpig_cli.store.index_writer import BeingWritten, IndexWriter

# A prompt that ends inside an index is read anew from so many tokens before its end, which gives the
# queries that some methods observe there.
_READ_ANEW = 64
# Another process that reads the same text is asked so often whether it is done. A first look that fails may
# have met one that only tidies up.
_POLL_S = 0.2
_TELL_AFTER_S = 0.5
# Faults of this process or its rights, not of the files: whoever comes next may well use them.
_OUT_OF_REACH = {errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.EAGAIN}


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that was filled from an index.

    Attributes
    ----------
    session : Session
        Holds the first tokens of the prompt.
    path : Path
        The index.
    complete : bool
        It holds the whole prefix, and its attentions are built: only the question is left to read.
    """

    session: Session
    path: Path
    complete: bool


@dataclass(slots=True)
class Library:
    """The indexes that one model has written or may use.

    Parameters
    ----------
    folder : IndexFolder
    model : ModelKey
    limit_bytes : int
        Of all indexes together.
    threads : int
        Files that are read and checked at once.
    """

    folder: IndexFolder
    model: ModelKey
    limit_bytes: int
    threads: int = 1
    _notices: list[Notice] = field(default_factory=list)
    _in_use: list[InUse] = field(default_factory=list)
    _claimed: IndexWriter | None = None

    @classmethod
    def open(cls, root: Path, model: ModelKey, threads: int) -> Library:
        """The library in a cache folder; made if there is none.

        Raises
        ------
        UsageError
            If the limit in the environment is no size.
        OSError
            If the folder cannot be made.
        """
        folder = IndexFolder(root)
        limit = size_limit(root)
        library = cls(folder, model, limit, threads)
        if folder.create():
            share = f"{100 * SHARE_OF_DISK:.0f} % of the free disk; {LIMIT_VARIABLE} sets another limit"
            whence = LIMIT_VARIABLE if os.environ.get(LIMIT_VARIABLE, "").strip() else share
            library.tell(
                f"what is read is kept in {root}, up to {byte_size(limit)} ({whence}, "
                "--no-cache keeps nothing)"
            )
        folder.clean()
        return library

    def notices(self) -> list[Notice]:
        """What a person should know since the last call."""
        told, self._notices = self._notices, []
        return told

    def open_session(self, prefix: Sequence[int], new_session: Callable[[], Session]) -> Opened | None:
        """A session with as much of a prompt's prefix as some index holds; None if there is none.

        Parameters
        ----------
        prefix : sequence of int
        new_session : callable
            Makes an empty session with room for the prompt.
        """
        token_ids = np.asarray(prefix, np.int32)
        exact = index_key(self.model, token_ids)
        opened = self._try(exact, token_ids, new_session)
        if opened is not None:
            return opened
        for key in self._nearest(token_ids):
            opened = self._try(key, token_ids, new_session)
            if opened is not None:
                return opened
        return None

    def _nearest(self, token_ids: np.ndarray) -> list[str]:
        """Keys of indexes that hold a part of these tokens, the largest part first."""
        parts = []
        for head, n_alike in self.folder.nearest(self.model, token_ids):
            try:
                n_usable = _usable(read_meta(self.folder.root / head.key), token_ids)
            except (DamagedFile, OSError, KeyError, ValueError, TypeError):
                n_usable = n_alike  # opening it will tell
            if n_usable:
                parts.append((n_usable, head.key))
        return [key for _, key in sorted(parts, reverse=True)]

    def claim(self, prefix: Sequence[int]) -> Iterator[str]:
        """Be the one that reads these tokens, unless there is an index of them.

        Waits while another process reads the very same: it is on its way already, and two at once would only
        take each other's time. What a person should know meanwhile is yielded.
        """
        key = index_key(self.model, prefix)
        began, told = monotonic(), False
        while True:
            try:
                self._claimed = IndexWriter.open(self.folder, key)
                return
            except OSError as error:
                self.give_up(error)
                return
            except BeingWritten:
                if not told and monotonic() - began > _TELL_AFTER_S:
                    told = True
                    yield "another magicpig is reading the same text; waiting for it (Ctrl-C ends the wait)"
            sleep(_POLL_S)

    def release_claim(self) -> None:
        """Nothing is read after all."""
        claimed, self._claimed = self._claimed, None
        if claimed is not None:
            claimed.leave()

    def keeper(
        self, prefix: Sequence[int], documents: Sequence[str], session: Session, chunk_tokens: int
    ) -> IndexKeeper | None:
        """What keeps the reading of this prefix; None if nothing can, or it is kept already."""
        key = index_key(self.model, prefix)
        writer, self._claimed = self._claimed, None
        if writer is not None and writer.key != key:
            writer.leave()
            writer = None
        try:
            writer = writer or IndexWriter.open(self.folder, key)
        except OSError as error:
            self.give_up(error)
            return None
        except BeingWritten:
            self._notices.append(
                NotKept("another magicpig is reading the same text, so this reading is not kept")
            )
            return None
        if writer is None:
            return None
        numbers = {"known": session.n_tokens, "chunk_tokens": chunk_tokens}
        return IndexKeeper(self, writer, prefix, documents, session, numbers)

    def hold(self, key: str) -> None:
        """Nobody removes this index until `let_go`."""
        use = self.folder.take(key)
        if use is not None:
            self._in_use.append(use)

    def let_go(self) -> None:
        """The indexes that were opened or written are used no more."""
        for use in self._in_use:
            use.release()
        self._in_use.clear()

    def close(self) -> None:
        """Nothing of the library is used any more."""
        self.release_claim()
        self.let_go()

    def tell(self, sentence: str) -> None:
        """Add a notice."""
        self._notices.append(Notice(sentence))

    def give_up(self, error: OSError) -> None:
        """Add a notice of why there will be no index."""
        reason = error.strerror or str(error)
        self._notices.append(
            NotKept(f"what was read is not kept in {self.folder.root}: {reason[:1].lower()}{reason[1:]}")
        )

    def _try(self, key: str, token_ids: np.ndarray, new_session: Callable[[], Session]) -> Opened | None:
        """Fill a session from one index; one that is damaged is removed, with a notice."""
        try:
            use = self.folder.take(key)
        except OSError as error:
            self.tell(f"the index {self.folder.root / key} cannot be used: {error.strerror}")
            return None
        if use is None:
            return None
        try:
            opened = self._fill(use.path, token_ids, new_session)
        except (DamagedFile, OSError, TypeError, KeyError, ValueError) as error:
            use.release()
            self.tell(self._damaged(use.path, error))
            return None
        if opened is None:
            use.release()
        else:
            self._in_use.append(use)
        return opened

    def _damaged(self, path: Path, error: Exception) -> str:
        """Remove an index that is damaged, unless it is only out of reach just now; gives what to tell."""
        if isinstance(error, OSError) and error.errno in _OUT_OF_REACH:
            return f"the index {path} cannot be used ({error.strerror}); the text is read anew"
        try:
            removed = self.folder.remove(path.name)
        except OSError:
            removed = False
        outcome = "it is removed" if removed else "it cannot be removed just now"
        return f"the index {path} is damaged ({error}); {outcome}, the text read anew"

    def _tables_damaged(self, path: Path, error: DamagedFile) -> None:
        """Keys and values are whole, so nothing is read anew; but whoever comes next need not find it."""
        self.tell(f"tables of the index {path} are damaged ({error}); they are built anew")
        try:
            remove_tables(path)
        except OSError as reason:
            self.tell(f"they cannot be removed: {(reason.strerror or str(reason)).lower()}")

    def _fill(self, path: Path, token_ids: np.ndarray, new_session: Callable[[], Session]) -> Opened | None:
        meta = read_meta(path)
        n_shared = _usable(meta, token_ids)
        if not n_shared:
            return None
        complete = n_shared == len(token_ids)
        session = new_session()
        if len(meta.layers) != session.n_layers:
            raise DamagedFile(f"{path} has {len(meta.layers)} layers, the model {session.n_layers}")
        session.postpone()
        restore_layers(session, path, dict(enumerate(meta.layers)), self.threads)
        for layer, store in enumerate(session.stores):
            if store is not None and not complete:
                store.truncate(n_shared)
            elif complete:
                session.close_layer(layer, session.observed(layer))
        if complete:
            offer_tables(session, path, self._tables_damaged)
        session.token_ids.extend(token_ids[:n_shared].tolist())
        return Opened(session, path, complete)


def _usable(meta: IndexMeta, wanted: np.ndarray) -> int:
    """How many of the wanted tokens, from the first, a session can take from an index."""
    n = min(meta.n_tokens, len(wanted))
    different = np.flatnonzero(meta.token_ids[:n] != wanted[:n])
    n_shared = int(different[0]) if len(different) else n
    if n_shared == len(wanted) < meta.n_tokens:
        n_shared -= _READ_ANEW
    if n_shared < meta.n_tokens and any(layer.window is not None for layer in meta.layers):
        return 0  # what those layers saw at that point is gone
    return max(0, n_shared)
