"""The parameters of locality-sensitive hashing and the shape of a layer, as the heart sees them."""

from __future__ import annotations

from dataclasses import dataclass

# The kernels add up to eight counts, none above M, in a byte and compare by its highest bit.
MOST_COLLISIONS = 16


@dataclass(frozen=True, slots=True)
class LshParams:
    """How keys are hashed and sampled (MagicPIG, arXiv 2410.16179, section 4); the defaults are the paper's.

    Attributes
    ----------
    n_bits : int
        K: hyperplanes per table, 1 to 16.
    n_tables : int
        L: tables, at least `min_collisions`.
    min_collisions : int
        M: in how many tables a key must share a query's bucket to be sampled, 1 to
        MOST_COLLISIONS.
    seed : int
        Draws the hyperplanes; the same seed gives the same sample on any number of threads.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    n_bits: int = 10
    n_tables: int = 150
    min_collisions: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.n_bits <= 16 or not 1 <= self.min_collisions <= min(MOST_COLLISIONS, self.n_tables):
            raise ValueError(f"no key can be sampled, or none left out, with {self}")


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Heads of one attention layer: `n_q_heads` is a multiple of `n_kv_heads`."""

    n_q_heads: int
    n_kv_heads: int
    head_dim: int

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.n_q_heads // self.n_kv_heads
