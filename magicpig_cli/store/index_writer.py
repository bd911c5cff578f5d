"""Writes an index while a document is being read: a file per layer as it is finished, a rename at the end.

Until the rename nothing is found under the index's name, so a crash or a full disk at any byte leaves
no index. An interrupted reading leaves its finished layers and a note of where to go on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from magicpig_cli.errors import DamagedFile
from magicpig_cli.store.index_folder import RESUME, IndexFolder
from magicpig_cli.store.index_layer import write_layer
from magicpig_cli.store.index_meta import IndexMeta, read_checked, write_checked, write_meta
from magicpig_cli.store.index_record import LayerRecord, layer_name, open_private
from magicpig_cli.store.kv import LayerStore


@dataclass(frozen=True, slots=True)
class Resume:
    """Where an interrupted reading stood.

    Attributes
    ----------
    layers : dict of int to LayerRecord
        Those that are finished.
    numbers : dict of str to int
        As `IndexWriter.suspend` got them.
    tensors : dict of str to torch.Tensor
        Likewise.
    """

    layers: dict[int, LayerRecord]
    numbers: dict[str, int]
    tensors: dict[str, torch.Tensor]


class IndexWriter:
    """The one writer of an index. Get it by `open`; end it by `finish`, `suspend` or `abandon`."""

    def __init__(self, folder: IndexFolder, key: str, lock: FileLock) -> None:
        self._folder = folder
        self._lock = lock
        self.key = key
        self.path = folder.partial(key)
        self.layers: dict[int, LayerRecord] = {}

    @classmethod
    def open(cls, folder: IndexFolder, key: str) -> IndexWriter | None:
        """A writer, or None if another process is writing this index or has written it."""
        folder.create()
        lock = folder.writing_lock(key)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        if (folder.root / key).exists():
            lock.release()
            return None
        writer = cls(folder, key, lock)
        if not (writer.path / RESUME).exists():
            shutil.rmtree(writer.path, ignore_errors=True)
        writer.path.mkdir(mode=0o700, exist_ok=True)
        return writer

    def resume(self) -> Resume | None:
        """Where an earlier reading was interrupted, None if there was none.

        Raises
        ------
        DamagedFile
            If its note is damaged; `start_over` then.
        """
        try:
            body = read_checked(self.path / RESUME)
            data = (self.path / body["tensors"]).read_bytes()
            if zlib.crc32(data) != body["checksum"]:
                raise DamagedFile(f"{self.path / body['tensors']} is altered or incomplete")
            tensors = load_tensors(data)
        except FileNotFoundError:
            if (self.path / RESUME).exists():
                raise DamagedFile(f"{self.path} has lost a file") from None
            return None
        except SafetensorError as error:
            raise DamagedFile(f"{self.path} cannot be read: {error}") from error
        layers = {int(layer): LayerRecord(**record) for layer, record in body["layers"].items()}
        self.layers = dict(layers)
        return Resume(layers, body["numbers"], tensors)

    def start_over(self) -> None:
        """Forget what an interrupted reading left."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.layers = {}

    def add_layer(self, layer: int, store: LayerStore, observed: torch.Tensor, record: LayerRecord) -> None:
        """Write a finished layer; raises OSError."""
        record = write_layer(self.path / layer_name(layer), store, observed, record)
        self.layers[layer] = record

    def suspend(
        self,
        numbers: Mapping[str, int],
        tensors: Mapping[str, torch.Tensor],
        model_id: str,
        documents: Sequence[str],
        n_tokens: int,
    ) -> None:
        """Keep what is finished, and a note of where the reading stands; raises OSError.

        Parameters
        ----------
        numbers, tensors
            What `resume` gives back.
        model_id, documents, n_tokens
            For people, as in `index_meta.IndexMeta`.
        """
        before = {path for path in self.path.glob("resume-*.safetensors")}
        number = 1 + max((int(path.stem.split("-")[1]) for path in before), default=0)
        name = f"resume-{number}.safetensors"
        data = save_tensors({key: tensor.contiguous() for key, tensor in tensors.items()})
        with open_private(self.path / name) as file:
            file.write(data)
        self._sync()
        body: dict[str, Any] = {
            "layers": {str(layer): record.as_json() for layer, record in self.layers.items()},
            "numbers": dict(numbers),
            "model": model_id,
            "documents": list(documents),
            "n_tokens": n_tokens,
            "tensors": name,
            "checksum": zlib.crc32(data),
        }
        write_checked(self.path / RESUME, body)
        for path in before:
            path.unlink(missing_ok=True)
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
