"""How many bits and tables suit a prompt's length.

A share that is right for 96k keys is too small for 2,600: there it leaves 75 keys. So
shorter prompts sample a larger share, and it stays below a tenth of the keys.
"""

from __future__ import annotations

# (prompt tokens up to which it serves, K, L), measured in docs/accuracy.md.
_BY_LENGTH = ((3_000, 10, 100), (12_000, 12, 300), (40_000, 10, 85))
# Beyond. The published setting is K=10, L=150 (arXiv 2410.16179, section 5), with a sample for each
# query head alone. Heads that sample together read fewer rows, and err less, with half of the tables.
_LONG = (10, 75)


def bits_and_tables(
    prompt_tokens: int, n_bits: int | None = None, n_tables: int | None = None
) -> tuple[int, int]:
    """K and L for a prompt; a value that is given stands.

    Parameters
    ----------
    prompt_tokens : int
    n_bits, n_tables : int or None
    """
    bits, tables = next(
        ((bits, tables) for limit, bits, tables in _BY_LENGTH if prompt_tokens <= limit), _LONG
    )
    return n_bits or bits, n_tables or tables
