"""Every decode-attention method by the name that `--attention` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from magicpig_cli.attention.base import AttentionMethod
from magicpig_cli.attention.budget import lsh_params
from magicpig_cli.attention.dense import Dense
from magicpig_cli.attention.dsa import Dsa
from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.attention.lsh_published import LshPublished
from magicpig_cli.attention.oracle_sampling import OracleSampling
from magicpig_cli.attention.oracle_topk import OracleTopK
from magicpig_cli.attention.pyramidkv import PyramidKV
from magicpig_cli.attention.quest import Quest
from magicpig_cli.attention.selected import BudgetedMethod
from magicpig_cli.attention.snapkv import SnapKV
from magicpig_cli.attention.streaming import Streaming
from magicpig_cli.attention.vattention import VAttention
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
    n_bits, n_tables, min_collisions : int or None
        None chooses by length.
    hash_seed : int
        Of the hyperplanes, and of any other random choice.
    budget : float or None
        Share of the keys to read, for methods that are told; None takes the method's default.
    tolerance : float or None
        Relative error of an output that a method should keep to, for those that can (`WITH_TOLERANCE`).
    """

    prompt_tokens: int
    dense_layers: tuple[int, ...]
    n_bits: int | None = None
    n_tables: int | None = None
    min_collisions: int | None = None
    hash_seed: int = 0
    budget: float | None = None
    tolerance: float | None = None


def _lsh(options: MethodOptions) -> AttentionMethod:
    params = lsh_params(
        options.prompt_tokens, options.n_bits, options.n_tables, options.min_collisions, options.hash_seed
    )
    return Lsh(params, options.dense_layers, tolerance=options.tolerance)


def _lsh_published(options: MethodOptions) -> AttentionMethod:
    paper = LshParams()
    params = LshParams(
        options.n_bits or paper.n_bits,
        options.n_tables or paper.n_tables,
        options.min_collisions or paper.min_collisions,
        options.hash_seed,
    )
    return LshPublished(options.dense_layers, params=params)


def _vattention(options: MethodOptions) -> AttentionMethod:
    method = VAttention(options.dense_layers, budget=options.budget, seed=options.hash_seed)
    return method if options.tolerance is None else replace(method, epsilon=options.tolerance)


def _oracle_sampling(options: MethodOptions) -> AttentionMethod:
    method = OracleSampling(options.dense_layers, seed=options.hash_seed)
    return method if options.budget is None else replace(method, budget=options.budget)


def _budgeted(kind: type[BudgetedMethod]) -> Callable[[MethodOptions], AttentionMethod]:
    def build(options: MethodOptions) -> AttentionMethod:
        method = kind(options.dense_layers)
        return method if options.budget is None else replace(method, budget=options.budget)

    return build


METHODS: dict[str, Callable[[MethodOptions], AttentionMethod]] = {
    "lsh": _lsh,
    "dense": lambda options: Dense(),
    "lsh-published": _lsh_published,
    "oracle-topk": _budgeted(OracleTopK),
    "oracle-sampling": _oracle_sampling,
    "streaming": _budgeted(Streaming),
    "quest": _budgeted(Quest),
    "snapkv": _budgeted(SnapKV),
    "pyramidkv": _budgeted(PyramidKV),
    "dsa": _budgeted(Dsa),
    "vattention": _vattention,
}
# Methods whose reading is set by K and L, or that read everything.
WITHOUT_BUDGET = ("lsh", "dense", "lsh-published")
# Methods that can keep to a tolerance, each by its own guarantee.
WITH_TOLERANCE = ("lsh", "vattention")


def build_method(name: str, options: MethodOptions) -> AttentionMethod:
    """The method of that name.

    Raises
    ------
    UsageError
        If there is none, or if it takes no budget or no tolerance and one is given.
    """
    if name not in METHODS:
        raise UsageError(f"there is no attention method {name!r}; choose one of {', '.join(METHODS)}")
    if options.budget is not None and name in WITHOUT_BUDGET:
        raise UsageError(f"attention method {name!r} takes no budget; leave it out")
    if options.tolerance is not None and name not in WITH_TOLERANCE:
        raise UsageError(f"attention method {name!r} takes no tolerance; leave it out")
    if options.tolerance is not None and options.budget is not None:
        raise UsageError(f"a fixed budget of {name} cannot keep to a tolerance; leave one of them out")
    return METHODS[name](options)
