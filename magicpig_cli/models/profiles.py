"""What is known of a model beyond its files: which layers attend broadly and stay dense."""

from __future__ import annotations

# The published choice (MagicPIG, arXiv 2410.16179, section 5): layers 0, 16, 32, 48, 64.
_DENSE_EVERY = 16


def dense_layers(n_layers: int) -> tuple[int, ...]:
    """Layers that attend exactly.

    Parameters
    ----------
    n_layers : int
        Decoder layers of the model.
    """
    return tuple(range(0, n_layers, _DENSE_EVERY))
