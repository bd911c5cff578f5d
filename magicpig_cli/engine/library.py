"""Documents that were read before, found by their tokens: a disk's part in "read once, ask many times".

Stands between the engine and `store.index_*`: turns an index into a session before prefill, and what
prefill computes into an index. Whatever goes wrong with an index costs a notice and a new reading,
never the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import time

import numpy as np
import psutil
import torch

from magicpig_cli.attention.hook import LayerRule
from magicpig_cli.attention.session import Session
from magicpig_cli.engine.prefill import Suspended
from magicpig_cli.errors import DamagedFile
from magicpig_cli.lsh.params import LayerShape
from magicpig_cli.store.index_folder import LIMIT_VARIABLE, SHARE_OF_DISK, IndexFolder, InUse, size_limit
from magicpig_cli.store.index_layer import observed_name, read_layer
from magicpig_cli.store.index_meta import IndexMeta, ModelKey, index_key, read_meta
from magicpig_cli.store.index_record import LayerRecord, layer_name
from magicpig_cli.store.index_writer import Finishing, IndexWriter
from magicpig_cli.store.kv import LayerStore

# A prompt that ends inside an index is read anew from so many tokens before its end, which gives the
# queries that some methods observe there.
_READ_ANEW = 64
# From so many tokens on a file leaves room behind each head's rows, for what is appended to a mapping.
_SPARE_FROM_TOKENS = 16_384
_SPARE_TOKENS = 8_192
# Rows are mapped, not copied, if they would take more than this share of the memory that is free.
_COPY_SHARE = 0.5


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
    _notices: list[str] = field(default_factory=list)
    _in_use: list[InUse] = field(default_factory=list)

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
            library._notices.append(
                f"what is read is kept in {root}, up to {limit / 1e9:,.1f} GB "
                f"({SHARE_OF_DISK:.0%} of the free disk; {LIMIT_VARIABLE} sets another limit, "
                "--no-cache keeps nothing)"
            )
        folder.clean()
        return library

    def notices(self) -> list[str]:
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

    def keeper(
        self, prefix: Sequence[int], documents: Sequence[str], session: Session, chunk_tokens: int
    ) -> IndexKeeper | None:
        """What keeps the reading of this prefix; None if another process does or it is kept already."""
        key = index_key(self.model, prefix)
        try:
            writer = IndexWriter.open(self.folder, key)
        except OSError as error:
            self._notices.append(_not_kept(error, self.folder.root))
            return None
        if writer is None:
            return None
        numbers = {"known": session.n_tokens, "chunk_tokens": chunk_tokens}
        return IndexKeeper(self, writer, prefix, documents, session, numbers)

    def hold(self, key: str) -> None:
        """Nobody removes this index until `close`."""
        use = self.folder.take(key)
        if use is not None:
            self._in_use.append(use)

    def close(self) -> None:
        """Nothing of the library is used any more."""
        for use in self._in_use:
            use.release()
        self._in_use.clear()

    def tell(self, sentence: str) -> None:
        """Add a notice."""
        self._notices.append(sentence)

    def _try(self, key: str, token_ids: np.ndarray, new_session: Callable[[], Session]) -> Opened | None:
        """Fill a session from one index; one that is damaged is removed, with a notice."""
        try:
            use = self.folder.take(key)
        except OSError as error:
            self._notices.append(f"the index {self.folder.root / key} cannot be used: {error.strerror}")
            return None
        if use is None:
            return None
        try:
            opened = self._fill(use.path, token_ids, new_session)
        except (DamagedFile, OSError, TypeError, KeyError, ValueError) as error:
            use.release()
            self._notices.append(
                f"the index {use.path} is damaged ({error}); it is removed, the text read anew"
            )
            self.folder.remove(key)
            return None
        if opened is None:
            use.release()
        else:
            self._in_use.append(use)
        return opened

    def _fill(self, path: Path, token_ids: np.ndarray, new_session: Callable[[], Session]) -> Opened | None:
        meta = read_meta(path)
        n_shared = _usable(meta, token_ids)
        if not n_shared:
            return None
        complete = n_shared == len(token_ids)
        session = new_session()
        if len(meta.layers) != session.n_layers:
            raise DamagedFile(f"{path} has {len(meta.layers)} layers, the model {session.n_layers}")
        restore_layers(session, path, dict(enumerate(meta.layers)), self.threads)
        for layer, store in enumerate(session.stores):
            if store is not None and not complete:
                store.truncate(n_shared)
            elif complete:
                session.close_layer(layer, session.observed(layer))
        session.token_ids.extend(token_ids[:n_shared].tolist())
        return Opened(session, path, complete)


@dataclass(frozen=True, slots=True)
class Kept:
    """An index that has just been written."""

    path: Path
    n_tokens: int
    n_bytes: int


class IndexKeeper:
    """Writes one index while its document is being read (a `prefill.Keeper`).

    Trouble with the disk ends the keeping with a notice, and the reading goes on.
    """

    def __init__(
        self,
        library: Library,
        writer: IndexWriter,
        prefix: Sequence[int],
        documents: Sequence[str],
        session: Session,
        numbers: dict[str, int],
    ) -> None:
        self._numbers = numbers
        self._library = library
        self._writer: IndexWriter | None = writer
        self._finishing: Finishing | None = None
        self._n_bytes = 0
        self._prefix = np.asarray(prefix, np.int32)
        self._documents = tuple(documents)
        self._session = session

    def taken_up(self) -> Suspended | None:
        """Where an interrupted reading of the same prefix stood; its layers are in the session then."""
        writer, session = self._writer, self._session
        if writer is None:
            return None
        try:
            resume = writer.resume()
            if resume is None:
                return None
            numbers, tensors = resume.numbers, resume.tensors
            if {name: numbers[name] for name in self._numbers} != self._numbers:
                writer.start_over()
                return None
            scratch = Session(session.method, session.n_layers, session.capacity, session.device)
            restore_layers(scratch, writer.path, resume.layers, self._library.threads)
        except (DamagedFile, OSError, KeyError, ValueError, TypeError) as error:
            self._library.tell(
                f"the interrupted reading in {writer.path} is damaged ({error}); it begins anew"
            )
            writer.start_over()
            return None
        for layer in resume.layers:
            session.take_layer(layer, scratch)
        self._library.tell(
            f"an interrupted reading of the same text goes on at layer {numbers['layer'] + 1} "
            f"of {session.n_layers}"
        )
        return Suspended(
            numbers["layer"],
            numbers["chunks_done"],
            tensors["hidden"],
            tensors["keys"],
            tensors["values"],
            tensors["queries"],
        )

    def layer_finished(self, layer: int) -> None:
        writer, session = self._writer, self._session
        store = session.stores[layer]
        if writer is None or store is None:
            return
        record = self._record(layer, store)
        try:
            self._check_limit(record, session.n_layers)
            writer.add_layer(layer, store, session.observed(layer), record)
        except OSError as error:
            self._give_up(error)

    def suspend(self, suspended: Suspended) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        numbers = {**self._numbers, "layer": suspended.layer, "chunks_done": suspended.chunks_done}
        tensors = {
            "hidden": suspended.hidden.cpu(),
            "keys": suspended.keys.cpu(),
            "values": suspended.values.cpu(),
            "queries": suspended.queries.cpu(),
        }
        try:
            writer.suspend(numbers, tensors, self._library.model.id, self._documents, len(self._prefix))
        except OSError:
            writer.abandon()

    def finish(self) -> None:
        """The document is read: bring its index to the disk, beside whatever is computed next."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        layers = tuple(writer.layers[layer] for layer in sorted(writer.layers))
        meta = IndexMeta(self._library.model, self._documents, self._prefix, layers, time())
        self._n_bytes = meta.n_bytes
        self._finishing = Finishing(writer, meta)

    def result(self) -> Kept | None:
        """Wait for the disk: the index, or None if nothing could be kept, or it was told already."""
        finishing, self._finishing = self._finishing, None
        if finishing is None:
            return None
        library = self._library
        try:
            path = finishing.result()
            library.hold(path.name)
            for head in library.folder.evict(library.limit_bytes, keep=path.name):
                library.tell(
                    f"the index of {', '.join(head.documents)} ({head.n_bytes / 1e6:,.0f} MB) was removed: "
                    f"indexes may take {library.limit_bytes / 1e9:,.1f} GB, and it was the longest unused"
                )
        except OSError as error:
            library.tell(_not_kept(error, library.folder.root))
            return None
        return Kept(path, len(self._prefix), self._n_bytes)

    def leave(self) -> None:
        """The reading ended before its end."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.leave()

    def _record(self, layer: int, store: LayerStore) -> LayerRecord:
        shape, rule = self._session.rule(layer)
        observed = self._session.observed(layer)
        n_rows = store.n_tokens - store.first_token
        roomy = rule.window is None and store.n_tokens >= _SPARE_FROM_TOKENS
        return LayerRecord(
            n_q_heads=shape.n_q_heads,
            n_kv_heads=shape.n_kv_heads,
            head_dim=shape.head_dim,
            scale=rule.scale,
            softcap=rule.softcap,
            window=rule.window,
            first_token=store.first_token,
            n_tokens=store.n_tokens,
            capacity=n_rows + (_SPARE_TOKENS if roomy else 0),
            observed_tokens=observed.shape[1],
            observed_dtype=observed_name(observed.dtype),
        )

    def _check_limit(self, record: LayerRecord, n_layers: int) -> None:
        n_bytes = n_layers * 2 * record.n_rows * record.n_kv_heads * record.head_dim * 2
        limit = self._library.limit_bytes
        if n_bytes > limit and record.window is None:
            raise OSError(
                0, f"it would take {n_bytes / 1e9:,.1f} GB, more than the limit of {limit / 1e9:,.1f} GB"
            )

    def _give_up(self, error: OSError) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
        self._library.tell(_not_kept(error, self._library.folder.root))


def restore_layers(session: Session, folder: Path, records: dict[int, LayerRecord], threads: int) -> None:
    """Fill layers of a session from their files, several at once, every byte checked.

    Raises
    ------
    DamagedFile, OSError
    """
    n_bytes = sum(record.kept_bytes for record in records.values())
    crowded = n_bytes > _COPY_SHARE * psutil.virtual_memory().available
    stores = {}
    for layer, record in records.items():
        shape = LayerShape(record.n_q_heads, record.n_kv_heads, record.head_dim)
        stores[layer] = session.open_layer(
            layer, shape, LayerRule(record.scale, record.softcap, record.window)
        )

    def fill(layer: int) -> torch.Tensor:
        record = records[layer]
        mapped = crowded and record.window is None and record.capacity > record.n_rows
        return read_layer(folder / layer_name(layer), record, stores[layer], mapped)

    with ThreadPoolExecutor(max(1, threads)) as pool:
        for layer, observed in zip(records, pool.map(fill, records), strict=True):
            session.observe(layer, observed)


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


def _not_kept(error: OSError, root: Path) -> str:
    return f"what was read is not kept in {root}: {(error.strerror or str(error)).lower()}"
