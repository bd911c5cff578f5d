"""How many bits, tables and collisions suit a prompt's length.

A share that is right for 96k keys is too small for 2,600: there it leaves 75 keys. So
shorter prompts sample a larger share, some 200 keys at least: about a fifth of 2,500 keys, which costs
little there, and below a tenth from 3,000 tokens on.
"""

from __future__ import annotations

from magicpig_cli.lsh.params import MOST_COLLISIONS, LshParams

# (prompt tokens up to which it serves, K, L, M), measured in docs/accuracy.md.
_BY_LENGTH = ((600, 8, 160, 2), (2_500, 8, 160, 4), (12_000, 8, 160, 6))
# Beyond: K and L as published (arXiv 2410.16179, section 5). With M=2, as there, heads that sample together
# would read three times as many rows.
_LONG = (10, 150, 3)
_PUBLISHED = LshParams()


def lsh_params(
    prompt_tokens: int,
    n_bits: int | None = None,
    n_tables: int | None = None,
    min_collisions: int | None = None,
    seed: int = 0,
) -> LshParams:
    """K, L and M for a prompt; a value that is given stands.

    M belongs to K and L: where only L is given, M changes in proportion, which keeps the share of the keys
    about the same; where K is given, M is that of the paper, 2.

    Parameters
    ----------
    prompt_tokens : int
    n_bits, n_tables, min_collisions : int or None
    seed : int
        Of the hyperplanes.
    """
    bits, tables, collisions = next(
        (choice for limit, *choice in _BY_LENGTH if prompt_tokens <= limit), _LONG
    )
    if n_bits is not None:
        collisions = _PUBLISHED.min_collisions
    elif n_tables is not None:
        collisions = max(_PUBLISHED.min_collisions, round(collisions * n_tables / tables))
    chosen = n_tables or tables
    return LshParams(n_bits or bits, chosen, min_collisions or min(collisions, chosen, MOST_COLLISIONS), seed)
