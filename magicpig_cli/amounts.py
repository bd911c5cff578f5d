"""Amounts as people read them, in one way wherever a sentence or a screen names one.

Below everything else, so that whoever knows an amount can say it.
"""

from __future__ import annotations


def byte_size(n_bytes: float) -> str:
    """`269 MB`, `1.24 GB`: decimal units, three digits."""
    if n_bytes < 1e6:
        return f"{n_bytes / 1e3:.0f} kB"
    if n_bytes < 999.5e6:
        return f"{n_bytes / 1e6:.0f} MB"
    size = n_bytes / 1e9
    return f"{size:.2f} GB" if size < 10 else f"{size:.1f} GB"
