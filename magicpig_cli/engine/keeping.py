"""What a reading computes goes to the disk meanwhile: layer by layer, with checkpoints, whole at the end.

The other half of `library`, which finds again what is written here. Trouble with the disk costs a notice,
never the answer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from magicpig_cli.amounts import byte_size
from magicpig_cli.attention.session import Session
from magicpig_cli.engine.events import Event, Indexed, Notice
from magicpig_cli.engine.prefill import Suspended
from magicpig_cli.engine.prompt import Prompt
from magicpig_cli.engine.restore import restore_layers
from magicpig_cli.errors import DamagedFile
from magicpig_cli.store.index_folder import LIMIT_VARIABLE
from magicpig_cli.store.index_layer import dtype_name
from magicpig_cli.store.index_meta import IndexMeta
from magicpig_cli.store.index_record import LayerRecord
from magicpig_cli.store.index_resume import Resume
from magicpig_cli.store.index_writer import Finishing, IndexWriter
from magicpig_cli.store.kv import LayerStore

if TYPE_CHECKING:
    from magicpig_cli.engine.library import Library

T = TypeVar("T")

# From so many tokens on a file leaves room behind each head's rows, for what is appended to a mapping.
_SPARE_FROM_TOKENS = 16_384
_SPARE_TOKENS = 8_192
# Tables are kept, not built anew, where they take no more than this share of keys and values (docs/index.md).
_TABLES_SHARE = 1.25
# Checkpoints of a reading are so far apart, and further where one takes more than this share of that time.
_CHECKPOINT_S = 10.0
_CHECKPOINT_SHARE = 0.01


class Keeping:
    """Keeping what one request reads, if there is a library: a context that leaves nothing half done."""

    def __init__(self, library: Library | None) -> None:
        self._library = library
        self._keeper: IndexKeeper | None = None
        self._finished = False

    def __enter__(self) -> Keeping:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._keeper is not None:
            self._keeper.result()
            self._keeper.leave()
        if self._library is not None:
            self._library.release_claim()

    def claim(self, prompt: Prompt) -> Iterator[Notice]:
        """Wait while another process reads this very prompt's prefix."""
        if self._library is not None:
            yield from map(Notice, self._library.claim(prompt.token_ids[: prompt.prefix_tokens]))

    def begin(
        self, prompt: Prompt, session: Session, chunk_tokens: int
    ) -> tuple[IndexKeeper | None, Suspended | None]:
        """What to tell of the reading of a prompt's prefix, and where an interrupted one stood."""
        if self._library is None:
            return None, None
        prefix = prompt.token_ids[: prompt.prefix_tokens]
        names = [document.source for document in prompt.documents]
        self._keeper = self._library.keeper(prefix, names, session, chunk_tokens)
        return self._keeper, None if self._keeper is None else self._keeper.taken_up()

    def finish(self) -> None:
        """The prefix is read."""
        if self._keeper is not None:
            self._keeper.finish()

    def notices(self) -> Iterator[Notice]:
        """What the library has to say."""
        if self._library is not None:
            yield from self._library.notices()

    def telling(self, events: Generator[Event, None, T]) -> Generator[Event, None, T]:
        """The events of a reading, and at once what the library has to say: the end may be minutes away."""
        with closing(events):
            while True:
                try:
                    event = next(events)
                except StopIteration as end:
                    value: T = end.value
                    return value
                yield from self.notices()
                yield event

    def outcome(self) -> Iterator[Notice | Indexed]:
        """Wait for the disk, and tell what is kept."""
        kept = None if self._keeper is None else self._keeper.result()
        yield from self.notices()
        if kept is not None:
            yield Indexed(str(kept.path), kept.n_tokens, kept.n_bytes)


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
        self._due = monotonic() + _CHECKPOINT_S
        # The layer whose tables come next: they may be in the making while the layer behind it is read.
        self._untabled: int | None = None

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
        for layer in resume.layers:
            self._keep_tables(layer)
        if self._writer is None:
            return None
        self._library.tell(
            f"an interrupted reading of the same text goes on at layer {numbers['layer'] + 1} "
            f"of {session.n_layers}"
        )
        (hidden,), (keys,), (values,), (queries,) = (
            tensors[name] for name in ("hidden", "keys", "values", "queries")
        )
        chunks = hidden.split(numbers["chunk_tokens"])
        return Suspended(numbers["layer"], numbers["chunks_done"], chunks, keys, values, queries)

    def layer_finished(self, layer: int) -> None:
        writer, session = self._writer, self._session
        store = session.stores[layer]
        if writer is None or store is None or layer in writer.layers:
            return
        record = self._record(layer, store)
        try:
            self._check_limit(record, session.n_layers, writer.layers)
            writer.add_layer(layer, store, session.observed(layer), record)
        except OSError as error:
            self._give_up(error)
        self._keep_tables(self._untabled)
        self._untabled = layer

    def is_due(self) -> bool:
        return self._writer is not None and monotonic() >= self._due

    def checkpoint(self, suspended: Suspended) -> None:
        writer = self._writer
        if writer is None:
            return
        started = monotonic()
        try:
            writer.note(self._resume(writer, suspended))
        except OSError as error:
            self._give_up(error)
        now = monotonic()
        self._due = now + max(_CHECKPOINT_S, (now - started) / _CHECKPOINT_SHARE)

    def suspend(self, suspended: Suspended) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.suspend(self._resume(writer, suspended))
        except OSError:
            writer.leave()

    def _resume(self, writer: IndexWriter, suspended: Suspended) -> Resume:
        return Resume(
            dict(writer.layers),
            {**self._numbers, "layer": suspended.layer, "chunks_done": suspended.chunks_done},
            {
                "hidden": suspended.hidden,
                # Head by head, since the layer's memory has room for all chunks between its heads.
                "keys": suspended.keys.split(1),
                "values": suspended.values.split(1),
                "queries": [suspended.queries],
            },
            self._library.model.id,
            self._documents,
            len(self._prefix),
        )

    def finish(self) -> None:
        """The document is read: bring its index to the disk, beside whatever is computed next."""
        self._keep_tables(self._untabled)
        writer, self._writer = self._writer, None
        if writer is None:
            return
        layers = tuple(writer.layers[layer] for layer in sorted(writer.layers))
        table_bytes = sum(tables.n_bytes for tables in writer.tables.values())
        meta = IndexMeta(self._library.model, self._documents, self._prefix, layers, time(), table_bytes)
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
            for entry in library.folder.evict(library.limit_bytes, keep=path.name):
                served = f"the index of {', '.join(entry.documents)}", "the longest unused"
                what, why = served if entry.documents else ("an index", "damaged, or of another version")
                library.tell(
                    f"{what} ({byte_size(entry.n_bytes)}) was removed: "
                    f"indexes may take {byte_size(library.limit_bytes)}, and it was {why}"
                )
        except OSError as error:
            library.give_up(error)
            return None
        return Kept(path, len(self._prefix), self._n_bytes)

    def leave(self) -> None:
        """The reading ended before its end."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.leave()

    def _keep_tables(self, layer: int | None) -> None:
        """Keep a layer's tables as well, if there is one and they are small beside its keys and values."""
        writer = self._writer
        if writer is None or layer is None:
            return
        store = self._session.stores[layer]
        attention = self._session.attentions[layer]
        tables = None if attention is None else attention.keeper_of_tables
        if store is None or tables is None:
            return
        planned = tables.planned_tables()
        if planned is None or planned.n_bytes > _TABLES_SHARE * store.nbytes:
            return
        # Tables are extra: they do not make an index larger than all indexes may be.
        if len(self._session.stores) * (planned.n_bytes + store.nbytes) <= self._library.limit_bytes:
            try:
                writer.add_tables(layer, planned.key, tables.first_tables())
            except OSError as error:
                self._give_up(error)

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
            observed_dtype=dtype_name(observed.dtype),
        )

    def _check_limit(self, record: LayerRecord, n_layers: int, written: Mapping[int, LayerRecord]) -> None:
        """Refuse an index larger than all may be: at its first layer, where its layers are alike."""
        n_bytes = record.planned_bytes + sum(layer.kept_bytes for layer in written.values())
        if record.window is None and all(layer.window is None for layer in written.values()):
            n_bytes = max(n_bytes, n_layers * record.planned_bytes)
        limit = self._library.limit_bytes
        if n_bytes > limit:
            allowed = f"{byte_size(limit)}, which {LIMIT_VARIABLE} sets"
            raise OSError(0, f"it would take {byte_size(n_bytes)}, more than the limit of {allowed}")

    def _give_up(self, error: OSError) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
        self._library.give_up(error)
