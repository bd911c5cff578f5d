"""Tables as a data structure: every key in the bucket of its code, ascending, through merges too."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from magicpig_cli.lsh.tables import TableBlock, append_block, empty_block, sort_by_code


def _block(codes: np.ndarray, start: int, n_bits: int) -> TableBlock:
    """Tables of codes (n_kv_heads, n_tables, n_keys)."""
    block = empty_block(start, codes.shape[2], codes.shape[0], codes.shape[1], n_bits)
    for head in range(codes.shape[0]):
        sort_by_code(codes[head], codes.shape[2], block.offsets[head], block.ids[head])
    return block


def _codes_of(block: TableBlock) -> np.ndarray:
    """Read the codes back from the tables, checking that ids ascend within each bucket."""
    n_kv_heads, n_tables, n_keys = block.ids.shape
    codes = np.full((n_kv_heads, n_tables, n_keys), -1)
    for head in range(n_kv_heads):
        for table in range(n_tables):
            offsets = block.offsets[head, table].astype(int)
            assert offsets[0] == 0
            assert offsets[-1] == n_keys
            for code, (begin, end) in enumerate(itertools.pairwise(offsets)):
                ids = block.ids[head, table, begin:end].astype(int)
                assert (np.diff(ids) > 0).all()
                codes[head, table, ids] = code
    return codes


@given(
    n_keys=st.integers(1, 300),
    n_bits=st.integers(1, 8),
    n_heads=st.integers(1, 3),
    n_tables=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_every_key_stands_once_in_every_table(n_keys, n_bits, n_heads, n_tables, seed):
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << n_bits, (n_heads, n_tables, n_keys)).astype(np.uint16)
    np.testing.assert_array_equal(_codes_of(_block(codes, 0, n_bits)), codes)


@given(sizes=st.lists(st.integers(1, 90), min_size=1, max_size=12), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_appended_blocks_hold_the_same_codes_in_few_blocks(sizes, seed):
    random = np.random.default_rng(seed)
    codes = random.integers(0, 16, (2, 3, sum(sizes))).astype(np.uint16)
    blocks: list[TableBlock] = []
    start = 0
    for size in sizes:
        blocks = append_block(blocks, _block(codes[:, :, start : start + size].copy(), start, 4))
        start += size
    assert [b.start for b in blocks] == [0, *(b.stop for b in blocks[:-1])]
    assert blocks[-1].stop == sum(sizes)
    assert all(a.n_keys > b.n_keys for a, b in itertools.pairwise(blocks))
    np.testing.assert_array_equal(np.concatenate([_codes_of(b) for b in blocks], axis=2), codes)
