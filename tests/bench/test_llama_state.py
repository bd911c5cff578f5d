"""Files of llama.cpp's, made longer: what is written can be read, and holds only rows that were there."""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

ROW = 6
REAL = 70


@pytest.fixture(scope="module")
def state() -> Any:
    """The module, loaded as a script beside it would."""
    path = Path(__file__).parents[2] / "benchmarks" / "llama_state.py"
    spec = importlib.util.spec_from_file_location("llama_state", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def saved(n_cells: int, wrapped: bool, head: bytes = b"", transposed: int = 0) -> bytes:
    """A sequence of two layers as llama.cpp saves it; each row tells its tensor and its position."""
    tokens = [1000 + i for i in range(n_cells)]
    words = [-1, 1, n_cells, *tokens, 0] if wrapped else tokens
    parts = [b"qsgg", struct.pack(f"<II{len(words)}i", 4, len(words), *words), struct.pack("<II", 1, n_cells)]
    parts += [struct.pack("<iIi", i, 1, 0) for i in range(n_cells)]
    parts += [struct.pack("<II", transposed, 2), head]
    for tensor in range(4):
        parts.append(struct.pack("<iQ", 1, ROW))
        parts += [struct.pack("<HI", tensor, i) for i in range(n_cells)]
    return b"".join(parts)


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("head", [b"", bytes(8)])
@pytest.mark.parametrize("n_cells", [10, REAL, 200, 1000])
def test_an_extended_sequence_has_the_real_rows_and_more_like_them(
    state: Any, tmp_path: Path, wrapped: bool, head: bytes, n_cells: int
) -> None:
    path, longer = tmp_path / "read.bin", tmp_path / "extended.bin"
    path.write_bytes(saved(REAL, wrapped, head))
    tokens = state.write_extended(state.read_sequence(path), n_cells, longer)
    found = state.read_sequence(longer)
    assert found.tokens == tokens
    assert len(tokens) == n_cells
    assert (found.version, found.wrapped, found.head[8:]) == (4, wrapped, head)
    positions = [token - 1000 for token in tokens]
    assert positions[:REAL] == list(range(min(REAL, n_cells)))
    assert set(positions) <= set(range(REAL))
    for number, rows in enumerate([*found.keys, *found.values]):
        assert list(struct.iter_unpack("<HI", rows.data)) == [(number, position) for position in positions]


def test_a_sequence_as_long_as_the_real_one_is_the_same_file(state: Any, tmp_path: Path) -> None:
    path, copy = tmp_path / "read.bin", tmp_path / "copy.bin"
    path.write_bytes(saved(REAL, True, bytes(8)))
    state.write_extended(state.read_sequence(path), REAL, copy)
    assert copy.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: b"GGUF" + data[4:], "not a saved sequence"),
        (lambda data: data[:-1], "are not 2 layers of 70 cells"),
        (lambda data: data[:40], "ends early"),
        (lambda data: data + bytes(4), "are not 2 layers"),
        (lambda data: data.replace(struct.pack("<iIi", 7, 1, 0), struct.pack("<iIi", 8, 1, 0)), "positions"),
        (lambda data: saved(REAL, True, transposed=1), "flash attention"),
    ],
)
def test_another_form_is_refused(state: Any, tmp_path: Path, damage: Any, says: str) -> None:
    path = tmp_path / "read.bin"
    path.write_bytes(damage(saved(REAL, True)))
    with pytest.raises(state.StateError, match=says):
        state.read_sequence(path)


def test_a_copy_declares_a_context_without_end_and_is_else_the_same(state: Any, tmp_path: Path) -> None:
    import gguf

    path, copy = tmp_path / "m.gguf", tmp_path / "copy.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_block_count(3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    state.raise_context(path, copy)
    fields = gguf.GGUFReader(copy).fields
    assert fields["llama.context_length"].contents() > 10_000_000
    assert fields["llama.block_count"].contents() == 3
    (tmp_path / "none.gguf").write_bytes(b"GGUF")
    with pytest.raises(state.StateError, match="does not declare"):
        state.raise_context(tmp_path / "none.gguf", copy)
