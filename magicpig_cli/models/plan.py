"""The memory that a reading will need, in bytes, before anything is read: plan, tell, refuse.

`doctor` shows a plan and the engine refuses by it. Every term is what the program really
allocates; two constants stand for what cannot be counted (the libraries' own memory, gaps in
the allocator's heap) and are measured, see `_RUNTIME_BYTES` and `_GAPS`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from magicpig_cli.attention.budget import lsh_params
from magicpig_cli.attention.footprint import rival_footprint
from magicpig_cli.errors import DoesNotFit
from magicpig_cli.models.profiles import dense_layers
from magicpig_cli.models.shape import ModelShape, catalog_shapes

_DTYPE_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "float32": 4}
# Bytes that a quantised weight takes with its share of the scales, on a CPU and on a GPU
# (`quantize.Int8Linear` and `Int4Linear`; the library's layers with scales in 8 bits); of int8, a row
# has one scale besides.
_QUANTIZED_BYTES = {
    ("int8", "cpu"): 1.0,
    ("int8", "cuda"): 1.0,
    ("int4", "cpu"): 0.5625,
    ("int4", "cuda"): 0.516,
}
# Keys per block of tables: lsh.tables.BLOCK_KEYS, which cannot be imported without numba.
_BLOCK_KEYS = 65_535
# Exact tokens at both ends, never in a table (attention.lsh.Lsh).
_EXACT_TOKENS = 68
# Python, torch, transformers and numba with compiled kernels, resident: measured as the peak of a
# process that reads 160 tokens with the embedded model, less what the plan counts for it.
_RUNTIME_BYTES = 580_000_000
# The same on a machine with a GPU: CUDA's libraries and context keep more on the host.
_CUDA_RUNTIME_BYTES = 2_500_000_000
# Context of CUDA and workspaces of its libraries on the device.
_CUDA_CONTEXT_BYTES = 700_000_000
# A tokenizer and its plain copy take about this many times the bytes of tokenizer.json.
_TOKENIZER_FACTOR = 12
# A layer's lasting buffers (its rows, its tables) come to lie where its widened weights have just
# been, so that some of that space is not free for the next layer: about as much as they take, up to
# this share of the widened weights, and not much in all, since the allocator maps large ones apart.
_GAPS, _MOST_GAPS_BYTES = 0.35, 400_000_000

# Lengths at which `longest_ctx` looks first.
_LENGTHS = 256
# Fewer tables than this are not advised, nor a context stretched further than published models are.
_FEWEST_TABLES, _FARTHEST_STRETCH = 30, 4


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What decides a plan beside model and length.

    Attributes
    ----------
    device_kind : str
        cpu or cuda.
    dtype : str
        How weights are kept, as `--dtype` takes it.
    attention : str
        A name of `attention.registry.METHODS`.
    n_bits, n_tables : int or None
        K and L; None chooses by length.
    dense_layers : tuple of int or None
        None takes the model's profile.
    chunk_tokens : int
        Tokens that prefill computes at once.
    quantization : str
        Of the layers' matrices, as `--quantize` takes it.
    budget : float or None
        Share of the keys that methods to compare with read.
    """

    device_kind: str = "cpu"
    dtype: str = "auto"
    attention: str = "lsh"
    n_bits: int | None = None
    n_tables: int | None = None
    dense_layers: tuple[int, ...] | None = None
    chunk_tokens: int = 512
    quantization: str = "none"
    budget: float | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """Free memory, in bytes; `device_bytes` is None on a CPU, where the device is the host."""

    host_bytes: int
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Bytes where the model computes: GPU memory, or on a CPU a part of host memory.

    `static_kv` are the keys and values of dense and sliding layers that a GPU keeps.
    """

    weights: int
    static_kv: int
    hidden_states: int
    activations: int
    overhead: int

    @property
    def total(self) -> int:
        return self.weights + self.static_kv + self.hidden_states + self.activations + self.overhead


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Bytes in host memory. `computing` is the device's part where the device is the host."""

    kv: int
    tables: int
    runtime: int
    computing: int

    @property
    def total(self) -> int:
        return self.kv + self.tables + self.runtime + self.computing


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What one reading takes at its peak.

    Attributes
    ----------
    shape : ModelShape
    ctx : int
        Tokens of prompt and answer.
    device_kind : str
    n_bits, n_tables : int or None
        None where the method keeps no tables.
    """

    shape: ModelShape
    ctx: int
    device_kind: str
    n_bits: int | None
    n_tables: int | None
    device: DevicePlan
    host: HostPlan

    def fits(self, room: Room) -> bool:
        """Whether there is memory for it; the model's context is another question."""
        on_device = room.device_bytes is None or self.device.total <= room.device_bytes
        return on_device and self.host.total <= room.host_bytes


def plan_memory(shape: ModelShape, ctx: int, options: PlanOptions) -> MemoryPlan:
    """The peak of reading and answering within `ctx` tokens.

    Parameters
    ----------
    shape : ModelShape
    ctx : int
        Tokens of prompt and answer.
    options : PlanOptions
    """
    on_cpu = options.device_kind == "cpu"
    number = 4 if on_cpu else _DTYPE_BYTES[options.dtype]  # a CPU computes in float32
    chunk = min(options.chunk_tokens, max(ctx, 1))
    layer = shape.layer
    row = 2 * layer.n_kv_heads * layer.head_dim * 2  # a key and a value in bf16
    dense = _dense(shape, options)
    bits, tables = _bits_and_tables(ctx, options)
    full = [i for i, window in enumerate(shape.windows) if window is None]
    # A sliding layer's store has room for two windows, and its mark keeps one more.
    windows = sum(3 * window for window in shape.windows if window is not None)
    sampled = [i for i in full if i not in dense]
    rival = rival_footprint(
        options.attention, layer, max(0, ctx - _EXACT_TOKENS), options.n_tables, options.budget
    )
    kv = (len(full) * ctx + windows) * row
    table_bytes = len(sampled) * (
        rival.stored if bits is None else _layer_tables(shape, ctx, bits, tables or 0)
    )
    # A sliding layer's copy on a GPU has room for two windows.
    kept = len([i for i in full if i in dense]) * ctx + sum(2 * w for w in shape.windows if w is not None)
    static_kv = 0 if on_cpu else kept * row
    hidden = (ctx + chunk) * shape.hidden * number
    activations = _layer_buffers(shape, ctx, number) + _chunk_buffers(shape, chunk, number)
    overhead = 0 if on_cpu else _CUDA_CONTEXT_BYTES
    if on_cpu:
        wide = 4 * shape.layer_parameters
        activations += wide + 2 * shape.vocabulary * 4
        overhead += min(_MOST_GAPS_BYTES, int(_GAPS * shape.n_layers * wide), kv + table_bytes)
    elif shape.packed_parameters:
        activations += number * shape.layer_parameters  # widened while a layer is read
    device = DevicePlan(_weights(shape, options), static_kv, hidden, activations, overhead)
    runtime = (_RUNTIME_BYTES if on_cpu else _CUDA_RUNTIME_BYTES) + _TOKENIZER_FACTOR * shape.tokenizer_bytes
    if sampled:
        # Codes of one head while hashing, or what a method to compare with works on.
        runtime += (tables or 0) * min(ctx, _BLOCK_KEYS) * 2 + rival.scratch
    host = HostPlan(kv, table_bytes, runtime, device.total if on_cpu else 0)
    return MemoryPlan(shape, ctx, options.device_kind, bits, tables, device, host)


def longest_ctx(shape: ModelShape, options: PlanOptions, room: Room) -> int:
    """The most tokens of prompt and answer that fit the memory and the model; 0 if not even one."""

    def fits(ctx: int) -> bool:
        return plan_memory(shape, ctx, options).fits(room)

    # Not by halves alone: longer texts may get fewer tables, so that memory can fall at some lengths.
    step = max(1, shape.context_tokens // _LENGTHS)
    low = next((ctx for ctx in range(shape.context_tokens, 0, -step) if fits(ctx)), 0)
    high = min(shape.context_tokens, low + step)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def require_weights(shape: ModelShape, options: PlanOptions, room: Room) -> None:
    """Refuse a model that has no room here even for a short text; raises as `require_room`."""
    _require(plan_memory(shape, 1, options), options, room, f"the model {shape.id} needs")


def require_room(plan: MemoryPlan, options: PlanOptions, room: Room) -> None:
    """Refuse what does not fit.

    Raises
    ------
    DoesNotFit
        With what is needed, what there is, and what to do.
    """
    _require(plan, options, room, f"{plan.ctx:,} tokens of prompt and answer with {plan.shape.id} need")


def _require(plan: MemoryPlan, options: PlanOptions, room: Room, subject: str) -> None:
    if plan.fits(room):
        return
    parts = []
    if plan.host.total > room.host_bytes:
        parts.append(f"{_gb(plan.host.total)} of host memory, of which {_gb(room.host_bytes)} are available")
    if room.device_bytes is not None and plan.device.total > room.device_bytes:
        parts.append(f"{_gb(plan.device.total)} on the GPU, where {_gb(room.device_bytes)} are free")
    raise DoesNotFit(f"{subject} {' and '.join(parts)}; {', or '.join(advice(plan, options, room))}")


def advice(plan: MemoryPlan, options: PlanOptions, room: Room) -> list[str]:
    """What would make it fit, by options that there are; empty if it fits."""
    shape, ctx = plan.shape, plan.ctx
    found = []
    if ctx > shape.context_tokens:
        reaching = [s for s in catalog_shapes() if s.context_tokens >= ctx]
        found += [f"use --model {s.id}, which reads {s.context_tokens:,} tokens" for s in reaching[:1]]
        factor = -(-ctx // shape.context_tokens)
        if shape.rope == "default" and factor <= _FARTHEST_STRETCH:
            found.append(f"use --rope yarn:{factor}, which stretches the positions it was trained for")
    elif plan.fits(room):
        return []
    longest = longest_ctx(shape, options, room)
    if longest:
        found.append(f"keep prompt and answer within {longest:,} tokens")
    if ctx > shape.context_tokens:
        return found
    for words, changed in _alternatives(plan, options):
        roomy = Room(room.host_bytes) if changed.device_kind == "cpu" else room
        if plan_memory(shape, ctx, changed).fits(roomy):
            found.append(words)
            break
    else:
        smaller = [
            other
            for other in reversed(catalog_shapes())
            if other.parameters < shape.parameters
            and ctx <= other.context_tokens
            and plan_memory(other, ctx, options).fits(room)
        ]
        found += [f"use --model {other.id}" for other in smaller[:1]]
    if not found:
        found.append("close other programs, or use a machine with more memory")
    return found


def _alternatives(plan: MemoryPlan, options: PlanOptions) -> list[tuple[str, PlanOptions]]:
    """Options that take less memory, the mildest first."""
    ways = []
    if plan.n_tables is not None and plan.n_tables // 2 >= _FEWEST_TABLES:
        half = plan.n_tables // 2
        ways.append((f"use --tables {half}, which errs more", replace(options, n_tables=half)))
    if options.dtype == "float32":
        ways.append(("use --dtype bfloat16", replace(options, dtype="bfloat16")))
    if options.attention == "lsh":
        without = replace(options, attention="dense", n_bits=None, n_tables=None, dense_layers=None)
        ways.append(("use --attention dense, which keeps no tables", without))
    if options.quantization == "none" and plan.shape.linear_parameters:
        ways += [
            (f"use --quantize {name}, which rounds the weights", replace(options, quantization=name))
            for name in ("int8", "int4")
        ]
    if options.device_kind != "cpu":
        ways.append(("use --device cpu", replace(options, device_kind="cpu")))
    return ways


def _dense(shape: ModelShape, options: PlanOptions) -> frozenset[int]:
    if options.attention == "dense":
        return frozenset(range(shape.n_layers))
    chosen = options.dense_layers
    return frozenset(dense_layers(shape.n_layers) if chosen is None else chosen)


def _bits_and_tables(ctx: int, options: PlanOptions) -> tuple[int | None, int | None]:
    if options.attention != "lsh":
        return None, None
    params = lsh_params(ctx, options.n_bits, options.n_tables)
    return params.n_bits, params.n_tables


def _weights(shape: ModelShape, options: PlanOptions) -> int:
    number = _DTYPE_BYTES[options.dtype]
    on_cpu = options.device_kind == "cpu"
    quantized = 0 if options.quantization == "none" else shape.linear_parameters
    packed = 0 if on_cpu else shape.packed_parameters
    rest = shape.parameters - shape.expert_parameters - quantized - packed
    n_bytes = shape.packed_bytes if packed else 0
    n_bytes += rest * number + shape.expert_parameters * (4 if on_cpu else number)
    if quantized:
        each = _QUANTIZED_BYTES[options.quantization, options.device_kind]
        n_bytes += int(quantized * (each + (4 / shape.hidden if options.quantization == "int8" else 0)))
    return n_bytes


def _layer_tables(shape: ModelShape, ctx: int, bits: int, tables: int) -> int:
    """Ids and offsets of one layer, and bitmaps of its query heads."""
    keys = max(0, ctx - _EXACT_TOKENS)
    blocks = -(-keys // _BLOCK_KEYS)
    offsets = blocks * shape.layer.n_kv_heads * tables * ((1 << bits) + 1) * 2
    ids = 2 * shape.layer.n_kv_heads * tables * keys
    return offsets + ids + shape.layer.n_q_heads * keys // 4


def _layer_buffers(shape: ModelShape, ctx: int, number: int) -> int:
    """One layer's keys and values while it is read, and the rotary angles of all tokens."""
    layer = shape.layer
    return 2 * layer.n_kv_heads * ctx * layer.head_dim * number + (
        2 * shape.rotations * ctx * layer.head_dim * number
    )


def _chunk_buffers(shape: ModelShape, chunk: int, number: int) -> int:
    """Activations of one chunk at its widest: in the feed-forward part, or in attention."""
    layer = shape.layer
    feed_forward = (3 * shape.intermediate + 3 * shape.hidden) * chunk * number
    heads = 6 * layer.n_q_heads * layer.head_dim * chunk * number
    mask = layer.group_size * chunk * chunk * (number + 1)
    return max(feed_forward, heads + mask)


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB"
