"""Writes an index while a document is being read: a file per layer as it is finished, a rename at the end.

Until the rename nothing is found under the index's name, so a crash or a full disk at any byte leaves
no index. An interrupted reading leaves its finished layers and a note of where to go on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout

from magicpig_cli.store.index_folder import RESUME, IndexFolder
from magicpig_cli.store.index_layer import write_layer
from magicpig_cli.store.index_meta import IndexMeta, write_meta
from magicpig_cli.store.index_record import LayerRecord, layer_name
from magicpig_cli.store.index_resume import Resume, read_resume, write_resume_note, write_resume_tensors
from magicpig_cli.store.index_tables import TablesRecord, tables_name, write_tables, write_tables_list
from magicpig_cli.store.kv import LayerStore


class BeingWritten(Exception):
    """Another process is writing this index just now."""


class IndexWriter:
    """The one writer of an index. Get it by `open`; end it by `finish`, `suspend` or `abandon`."""

    def __init__(self, folder: IndexFolder, key: str, lock: FileLock) -> None:
        self._folder = folder
        self._lock = lock
        self.key = key
        self.path = folder.partial(key)
        self.layers: dict[int, LayerRecord] = {}
        self.tables: dict[int, TablesRecord] = {}

    @classmethod
    def open(cls, folder: IndexFolder, key: str) -> IndexWriter | None:
        """A writer, or None if there is such an index.

        Raises
        ------
        BeingWritten
        OSError
            If the folder cannot be written.
        """
        folder.create()
        lock = folder.writing_lock(key)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BeingWritten from None
        if (folder.root / key).exists():
            lock.release()
            return None
        writer = cls(folder, key, lock)
        try:
            if not (writer.path / RESUME).exists():
                shutil.rmtree(writer.path, ignore_errors=True)
            writer.path.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            lock.release()
            raise
        return writer

    def resume(self) -> Resume | None:
        """Where an earlier reading was interrupted, None if there was none.

        Raises
        ------
        DamagedFile
            If its note is damaged; `start_over` then.
        """
        resume = read_resume(self.path)
        if resume is not None:
            self.layers = dict(resume.layers)
        return resume

    def start_over(self) -> None:
        """Forget what an interrupted reading left."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.layers = {}

    def add_layer(self, layer: int, store: LayerStore, observed: torch.Tensor, record: LayerRecord) -> None:
        """Write a finished layer; raises OSError."""
        record = write_layer(self.path / layer_name(layer), store, observed, record)
        self.layers[layer] = record

    def add_tables(self, layer: int, key: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the tables of a finished layer; raises OSError."""
        self.tables[layer] = write_tables(self.path / tables_name(layer), key, arrays)

    def note(self, resume: Resume) -> None:
        """Bring what is finished to the disk, with a note of where the reading stands.

        Raises
        ------
        OSError
            If the disk is full or fails; a note from before stays then.
        """
        before = set(self.path.glob("resume*"))
        try:
            tensors, checksum = write_resume_tensors(self.path, resume)
            self._sync()
            write_resume_note(self.path, resume, tensors, checksum)
        except OSError:
            for path in set(self.path.glob("resume*")) - before:
                path.unlink(missing_ok=True)
            raise

    def suspend(self, resume: Resume) -> None:
        """End with such a note; raises OSError, and is not at its end then."""
        self.note(resume)
        self._lock.release()

    def finish(self, meta: IndexMeta) -> Path:
        """Bring everything to the disk, then give it its name.

        Raises
        ------
        OSError
            If the disk is full or fails; nothing is left then.
        """
        try:
            for path in self.path.glob("resume*"):
                path.unlink()
            self._sync()
            if self.tables:
                write_tables_list(self.path, self.tables)
            write_meta(self.path, meta)
            _sync_folder(self.path)
            final = self._folder.root / self.key
            self.path.rename(final)
            _sync_folder(self._folder.root)
        except OSError:
            self.abandon()
            raise
        self._lock.release()
        return final

    def leave(self) -> None:
        """End without a word: what an interrupted reading left before stays, anything else goes."""
        if (self.path / RESUME).exists():
            self._lock.release()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()

    def _sync(self) -> None:
        for path in self.path.glob("*.safetensors"):
            with path.open("rb+") as file:
                os.fsync(file.fileno())


class Finishing:
    """`IndexWriter.finish` beside other work: it waits for the disk, not for a core."""

    def __init__(self, writer: IndexWriter, meta: IndexMeta) -> None:
        self._writer = writer
        self._meta = meta
        self._error: OSError | None = None
        self._path: Path | None = None
        self._thread = threading.Thread(target=self._run, name="index")
        self._thread.start()

    def result(self) -> Path:
        """Wait for the end and give the index's folder; raises the OSError that ended it."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._path is None:
            raise OSError(f"the index {self._writer.key} was not finished")
        return self._path

    def _run(self) -> None:
        try:
            self._path = self._writer.finish(self._meta)
        except OSError as error:
            self._error = error


def _sync_folder(folder: Path) -> None:
    """So that names survive a power cut as well; where folders cannot be synced, nothing is lost but that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
