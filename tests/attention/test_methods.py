"""Every method of the registry: exact with all keys, aware of new tokens, honest about what it reads."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from magicpig_cli.attention.base import AttentionMethod, LayerContext, StepStats
from magicpig_cli.attention.dsa import fit_weights
from magicpig_cli.attention.exact import attend_exactly
from magicpig_cli.attention.lsh_published import LshPublished
from magicpig_cli.attention.oracle_sampling import OracleSampling, inclusion
from magicpig_cli.attention.oracle_topk import OracleTopK
from magicpig_cli.attention.pyramidkv import PyramidKV
from magicpig_cli.attention.quest import Quest
from magicpig_cli.attention.registry import METHODS, WITHOUT_BUDGET, MethodOptions, build_method
from magicpig_cli.attention.snapkv import SnapKV
from magicpig_cli.attention.streaming import Streaming
from magicpig_cli.attention.transfer import InPlace
from magicpig_cli.attention.vattention import VAttention
from magicpig_cli.errors import UsageError
from magicpig_cli.lsh.params import LayerShape, LshParams
from magicpig_cli.store.kv import LayerStore

SHAPES = [LayerShape(6, 2, 32), LayerShape(4, 4, 16), LayerShape(3, 1, 24)]
BUDGETED = [name for name in METHODS if name not in WITHOUT_BUDGET]
# Methods that read the same number of keys for every head.
FIXED = [name for name in BUDGETED if name not in ("oracle-sampling", "pyramidkv", "quest")]
SHORT = [1, 3, 4, 5, 68, 69, 70]


class Layer:
    """A layer with random keys, as prefill leaves it, and steps over it."""

    def __init__(
        self,
        method: AttentionMethod,
        n: int,
        shape: LayerShape = SHAPES[0],
        softcap: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.shape = shape
        store = LayerStore(shape.n_kv_heads, shape.head_dim, n + 400)
        self.context = LayerContext(
            1,
            4,
            shape,
            2 / math.sqrt(shape.head_dim),
            softcap,
            store,
            StepStats(),
            torch.device("cpu"),
            InPlace(),
        )
        # Keys of a text have a mean far from zero; a method that forgot to centre would show.
        self.offset = self.normal(shape.n_kv_heads, 1, shape.head_dim)
        store.write(0, self.normal(shape.n_kv_heads, n, shape.head_dim) + self.offset, self.values(n))
        self.attention = method.layer(self.context)
        self.queries = self.normal(shape.n_q_heads, min(n, 64), shape.head_dim)
        self.attention.prefilled(self.queries)

    def normal(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self.random)

    def values(self, n: int) -> torch.Tensor:
        return self.normal(self.shape.n_kv_heads, n, self.shape.head_dim)

    def append(self, key: torch.Tensor | None = None, value: torch.Tensor | None = None) -> None:
        store, shape = self.context.store, self.shape
        drawn = self.normal(shape.n_kv_heads, 1, shape.head_dim) + self.offset
        store.write(store.n_tokens, drawn if key is None else key, self.values(1) if value is None else value)

    def step(self, query: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Append a token; query, output and log-sum-exp."""
        self.append()
        query = self.normal(self.shape.n_q_heads, self.shape.head_dim) if query is None else query
        output, lse = self.attention.attend(query)
        return query, output.clone(), lse.clone()

    def exact(self, query: torch.Tensor, tokens: Any = slice(None)) -> tuple[torch.Tensor, torch.Tensor]:
        store = self.context.store
        keys, values = (part[:, tokens] for part in store.read(0, store.n_tokens))
        return attend_exactly(query, keys, values, self.context.scale, self.context.softcap)


def of(name: str, budget: float | None = None, **options: Any) -> AttentionMethod:
    return build_method(name, MethodOptions(1000, (0,), budget=budget, **options))


def assert_exact(layer: Layer, query: torch.Tensor, output: torch.Tensor, lse: torch.Tensor) -> None:
    expected, expected_lse = layer.exact(query)
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", BUDGETED)
def test_with_all_keys_it_is_exact(name: str, shape: LayerShape, softcap: float) -> None:
    layer = Layer(of(name, 1.0), 300, shape, softcap)
    for _ in range(8):
        assert_exact(layer, *layer.step())
    stats = layer.context.stats
    assert stats.keys_touched == stats.keys_offered > 0


@pytest.mark.parametrize("n", SHORT)
@pytest.mark.parametrize("name", METHODS)
def test_short_prompts_are_exact_where_nothing_lies_between_the_ends(name: str, n: int) -> None:
    layer = Layer(of(name), n)
    query, output, lse = layer.step()
    if n + 1 <= 68 or name == "dense":
        assert_exact(layer, query, output, lse)
    assert torch.isfinite(output).all()
    assert torch.isfinite(lse).all()


@pytest.mark.parametrize("name", METHODS)
def test_generated_tokens_are_seen(name: str) -> None:
    """A key made later that the query points at: while recent, and when it has left the recent window."""
    bits = {"n_bits": 6, "n_tables": 60} if name.startswith("lsh") else {}
    budget = 0.5 if name in BUDGETED else None
    layer = Layer(of(name, budget, **bits), 300)
    shape = layer.shape
    direction = layer.normal(shape.n_kv_heads, 1, shape.head_dim)
    key = 8 * direction / direction.norm(dim=2, keepdim=True)
    query = (2 * key).expand(-1, shape.group_size, -1).reshape(shape.n_q_heads, shape.head_dim)
    marker = torch.full((shape.n_kv_heads, 1, shape.head_dim), 9.0)
    layer.append(key, marker)
    for steps in range(140):
        _, output, _ = layer.step(query)
        if steps in (0, 60, 139):
            assert float(output.mean()) > 8.0, f"after {steps} steps"


@pytest.mark.parametrize("name", METHODS)
def test_a_rewound_layer_answers_as_before(name: str) -> None:
    layer = Layer(of(name), 300)
    key, value = layer.normal(2, 1, 32), layer.values(1)
    query = layer.normal(6, 32)
    kept = layer.context.store.mark(), layer.attention.mark()
    layer.append(key, value)
    before = [part.clone() for part in layer.attention.attend(query)]
    for _ in range(150):
        layer.step()
    layer.context.store.rewind(kept[0])
    layer.attention.rewind(kept[1])
    layer.append(key, value)
    for now, then in zip(layer.attention.attend(query), before, strict=True):
        torch.testing.assert_close(now, then, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_dense_layers_are_exact(name: str) -> None:
    layer = Layer(build_method(name, MethodOptions(1000, (1,))), 300)
    assert_exact(layer, *layer.step())
    assert layer.context.stats.keys_offered == 0


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_weights_are_those_that_made_the_output(name: str, shape: LayerShape, softcap: float) -> None:
    """Asked again after a step, generated tokens among the keys: they add up to 1 and give its output."""
    bits = {"n_bits": 6, "n_tables": 60} if name.startswith("lsh") else {}
    layer = Layer(of(name, 0.2 if name in BUDGETED else None, **bits), 300, shape, softcap)
    for _ in range(3):
        query, output, lse = layer.step()
        weighed = layer.attention.weights(query, lse)
        values = layer.context.store.read(0, layer.context.store.n_tokens)[1].float()
        head = 0
        for part in weighed:
            assert len(set(part.tokens.tolist())) == len(part.tokens)
            for weights in torch.from_numpy(part.weights):
                assert float(weights.sum()) == pytest.approx(1.0, abs=1e-3)
                got = weights @ values[head // shape.group_size][part.tokens]
                torch.testing.assert_close(got, output[head], rtol=2e-3, atol=1e-3)
                head += 1
        assert head == shape.n_q_heads


@pytest.mark.parametrize("budget", [0.01, 0.1, 0.4])
@pytest.mark.parametrize("name", FIXED)
def test_the_budget_is_what_is_touched(name: str, budget: float) -> None:
    layer = Layer(of(name, budget), 1067)
    layer.step()
    stats = layer.context.stats
    per_head = math.ceil(budget * (1000 - (name in ("snapkv",))) - 1e-6)
    assert stats.keys_offered / 6 in (999, 1000)
    assert stats.keys_touched == 6 * per_head


def test_oracle_top_k_reads_the_best_keys() -> None:
    layer = Layer(OracleTopK(budget=0.1), 500)
    query, output, lse = layer.step()
    n, kv_head = 501, torch.arange(6) // 3
    keys, values = (part.float() for part in layer.context.store.read(0, n))
    logits = (keys[kv_head] @ query[:, :, None])[:, :, 0] * layer.context.scale
    best = logits[:, 4 : n - 64].argsort(dim=1, descending=True)[:, : math.ceil(0.1 * 433)] + 4
    for head in range(6):
        tokens = torch.cat([torch.arange(4), best[head], torch.arange(n - 64, n)])
        weights = torch.softmax(logits[head, tokens], dim=0)
        torch.testing.assert_close(output[head], weights @ values[head // 3, tokens], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(lse[head], logits[head, tokens].logsumexp(0))


def test_streaming_reads_both_ends() -> None:
    layer = Layer(Streaming(budget=0.25), 467)
    query, output, lse = layer.step()
    expected = layer.exact(query, [*range(4), *range(468 - 64 - 100, 468)])
    torch.testing.assert_close(output, expected[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(lse, expected[1])


def test_quest_reads_the_pages_with_the_highest_bounds() -> None:
    """Against a loop over pages; the middle ends within a page."""
    layer = Layer(Quest(budget=0.2, page_tokens=16), 400)
    for _ in range(9):
        query, output, lse = layer.step()
    n, pages = 409, [range(i, min(i + 16, 409 - 64)) for i in range(4, 409 - 64, 16)]
    keys, values = (part.float() for part in layer.context.store.read(0, n))
    for head in range(6):
        k, v, q = keys[head // 3], values[head // 3], query[head]
        bounds = [torch.maximum(q * k[p].amin(0), q * k[p].amax(0)).sum() for p in map(list, pages)]
        best = sorted(range(len(pages)), key=lambda i: -float(bounds[i]))[: math.ceil(0.2 * len(pages))]
        tokens = [*range(4), *(t for i in best for t in pages[i]), *range(n - 64, n)]
        logits = k[tokens] @ q * layer.context.scale
        torch.testing.assert_close(output[head], torch.softmax(logits, 0) @ v[tokens], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(lse[head], logits.logsumexp(0))


def test_snapkv_keeps_what_the_last_queries_looked_at() -> None:
    """One key gets nearly all attention of the window: it and its neighbours are kept."""
    layer = Layer(SnapKV(budget=5 / 232, kernel_keys=5), 300)
    query = layer.normal(6, 1, 32)
    planted = 20 * query.reshape(2, 3, 32).mean(dim=1, keepdim=True)
    layer.context.store.rows[:, 100, 0] = planted.bfloat16().view(torch.uint16).numpy()[:, 0]
    layer.attention.prefilled(query.expand(-1, 64, -1).contiguous())
    layer.append()
    output, _ = layer.attention.attend(query[:, 0])
    expected, _ = layer.exact(query[:, 0], [*range(4), *range(98, 103), *range(236, 301)])
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("budget", [0.02, 0.1, 0.5, 0.9, 1.0])
def test_pyramid_budgets_fall_and_keep_their_mean(budget: float) -> None:
    shares = [PyramidKV(budget=budget).layer_budget(layer, 30) for layer in range(30)]
    assert sum(shares) / 30 == pytest.approx(budget)
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[-1] <= shares[0] <= 1
    if budget <= 0.5:
        assert shares[-1] == pytest.approx(budget / 20)


def test_inclusion_probabilities_add_up_and_stay_proportional() -> None:
    weights = torch.softmax(4 * torch.randn(5, 200, generator=torch.Generator().manual_seed(0)).double(), 1)
    u = inclusion(weights, 30)
    torch.testing.assert_close(u.sum(dim=1), torch.full((5,), 30.0).double())
    assert u.max() <= 1.0
    for row, weight in zip(u, weights, strict=True):
        free = row < 1
        assert 0 < int(free.sum()) < 200
        ratio = row[free] / weight[free]
        torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))


@pytest.mark.parametrize(
    "method",
    [
        OracleSampling(budget=0.2),
        VAttention(budget=0.2),
        LshPublished(params=LshParams(5, 30)),
    ],
    ids=lambda method: method.name,
)
def test_samplers_estimate_the_sum_without_bias(method: Any) -> None:
    """The mean of exp(lse) over many draws is the exact denominator; 4 standard errors of that mean allowed.

    LSH draws its hyperplanes in orthogonal blocks, so that in 32 dimensions its tables are not quite
    independent of each other: 3 % more for it.
    """
    draws, field = 150, "params" if method.name == "lsh-published" else "seed"
    bias = 0.03 if field == "params" else 0.0
    estimates, query = [], None
    for seed in range(draws):
        value = LshParams(5, 30, seed=1000 * seed) if field == "params" else seed
        layer = Layer(replace(method, **{field: value}), 250)
        query, _, lse = layer.step()
        estimates.append(torch.exp(lse - layer.exact(query)[1]))
    ratios = torch.stack(estimates)
    error = ratios.std(dim=0) / math.sqrt(draws)
    assert (error > 0).all()
    assert ((ratios.mean(dim=0) - 1).abs() < 4 * error + bias).all()


def test_vattention_reads_more_for_a_tighter_tolerance_and_keeps_it() -> None:
    touched = []
    for epsilon in (0.3, 0.1, 0.03):
        layer = Layer(VAttention(heavy=0.02, base_rate=0.02, epsilon=epsilon, delta=0.1), 2000)
        within = []
        for _ in range(30):
            query, _, lse = layer.step()
            within += ((lse - layer.exact(query)[1]).exp() - 1).abs().lt(epsilon).tolist()
        # 90 % promised; 180 draws of a fair promise stay above 80 % but once in a hundred thousand times.
        assert sum(within) / len(within) > 0.8
        touched.append(layer.context.stats.keys_touched)
    assert touched == sorted(touched)
    assert touched[0] < touched[2]


def test_dsa_reads_one_set_of_tokens_for_all_heads() -> None:
    layer = Layer(of("dsa", 0.1), 500)
    chosen = layer.attention.choose(layer.normal(6, 32), 4, 437)  # type: ignore[attr-defined]
    assert (chosen.tokens == chosen.tokens[:1]).all()
    assert len(set(chosen.tokens[0].tolist())) == math.ceil(0.1 * 433)


def test_fitted_weights_are_those_that_made_the_target() -> None:
    random = torch.Generator().manual_seed(1)
    features = torch.rand(12, 400, 5, generator=random)
    weights = torch.tensor([3.0, 0.5, 0.0, 6.0, 1.0])
    found = fit_weights(features, torch.softmax(features @ weights, dim=1), 1e-7)
    torch.testing.assert_close(found, weights, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", METHODS)
def test_a_budget_is_refused_where_it_means_nothing(name: str) -> None:
    if name in WITHOUT_BUDGET:
        with pytest.raises(UsageError, match="takes no budget"):
            of(name, 0.1)
    else:
        assert getattr(of(name, 0.125), "budget") == 0.125  # noqa: B009 - not of every method
