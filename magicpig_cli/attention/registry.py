"""Every decode-attention method by the name that `--attention` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from magicpig_cli.attention.base import AttentionMethod
from magicpig_cli.attention.budget import bits_and_tables
from magicpig_cli.attention.dense import Dense
from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.errors import UsageError
from magicpig_cli.lsh.params import LshParams


@dataclass(frozen=True, slots=True)
class MethodOptions:
    """What a person may set, and what is known when a prompt is ready.

    Attributes
    ----------
    prompt_tokens : int
    dense_layers : tuple of int
        Of the model's profile, or as asked.
    n_bits, n_tables : int or None
        None chooses by length.
    hash_seed : int
    """

    prompt_tokens: int
    dense_layers: tuple[int, ...]
    n_bits: int | None = None
    n_tables: int | None = None
    hash_seed: int = 0


def _lsh(options: MethodOptions) -> AttentionMethod:
    n_bits, n_tables = bits_and_tables(options.prompt_tokens, options.n_bits, options.n_tables)
    return Lsh(LshParams(n_bits, n_tables, options.hash_seed), options.dense_layers)


METHODS: dict[str, Callable[[MethodOptions], AttentionMethod]] = {
    "lsh": _lsh,
    "dense": lambda options: Dense(),
}


def build_method(name: str, options: MethodOptions) -> AttentionMethod:
    """The method of that name.

    Raises
    ------
    UsageError
        If there is none.
    """
    if name not in METHODS:
        raise UsageError(f"there is no attention method {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name](options)
