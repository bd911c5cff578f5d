"""What the engine tells while it works: the only thing that views, JSON and benchmarks see.

`Engine.generate` yields these in order: `Prompted`, `PrefillProgress`..., `Prefilled`, then for
each step a `Token` and a `Step`, last `Finished`, and `Cited` if passages are asked for. `Notice`,
`Memory` and `Indexed` may come at any time. Loading has events of its own, which come before:
`LoadProgress`..., `Loaded`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from magicpig_cli.documents import PartInfo

FinishReason = Literal["stop", "length", "interrupted"]


@dataclass(frozen=True, slots=True)
class Notice:
    """One line that a person should read; never part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class NotKept(Notice):
    """Why what is being read will not be found again on the disk."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Something is being fetched or loaded: `phase` says what, in a word or two."""

    phase: str
    done_bytes: int
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    id: str
    architecture: str
    parameters: int
    dtype: str
    quantization: str
    context_tokens: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Where the model computes. `total_bytes` is the memory of that device (host memory on a CPU)."""

    name: str
    kind: Literal["cpu", "cuda"]
    total_bytes: int
    threads: int


@dataclass(frozen=True, slots=True)
class Loaded:
    model: ModelInfo
    device: DeviceInfo
    load_s: float


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """One source as it was read.

    `tokens` is None until a tokenizer has seen it; `part` is what of it was asked for, None for all of
    it, and the counts are that part's.
    """

    source: str
    encoding: str
    characters: int
    tokens: int | None
    part: PartInfo | None = None

    @property
    def name(self) -> str:
        """What to call it on a line: the source, and the part of it that is read."""
        return self.source if self.part is None else f"{self.source}, {self.part.label}"


@dataclass(frozen=True, slots=True)
class AttentionInfo:
    """The method as it will run on this prompt. LSH fields are None for other methods.

    `tolerance` is the relative error of an output that the method keeps to, None if it was not given one.
    """

    method: str
    n_bits: int | None
    n_tables: int | None
    min_collisions: int | None
    dense_layers: tuple[int, ...]
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Prompted:
    """The prompt is built and fits.

    `reused_tokens` of it need not be read: they are in memory or in the index at `index_path`, which
    took `open_s` to open; `index_path` is None without one.
    """

    documents: tuple[DocumentInfo, ...]
    document_tokens: int
    prompt_tokens: int
    reused_tokens: int
    attention: AttentionInfo
    index_path: str | None = None
    open_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Passage:
    """A place of a document that an answer's attention rested on.

    Attributes
    ----------
    source : str
    start, end : int
        Characters of the source's text, end exclusive.
    first_line, last_line : int
        Of the source's text, counted from 1.
    first_page, last_page : int or None
        Counted from 1; None where the source has no pages.
    section : str or None
        Title of the innermost section that it stands in.
    quotation : str
        The passage on one line, or the heaviest part of a long one.
    share : float
        Of the weight that counts (`engine.citing`), all documents together, 0 to 1.
    """

    source: str
    start: int
    end: int
    first_line: int
    last_line: int
    first_page: int | None
    last_page: int | None
    section: str | None
    quotation: str
    share: float


@dataclass(frozen=True, slots=True)
class Cited:
    """Where the answer's attention rested, the heaviest passage first."""

    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Indexed:
    """What was read is kept on disk."""

    path: str
    tokens: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`fraction` is the share of the work (not of the tokens) that is done, 0 to 1.

    Attention work grows with position, so a time left computed from `fraction` is honest
    where one computed from tokens is not.
    """

    layer: int
    n_layers: int
    tokens_done: int
    tokens_total: int
    fraction: float
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Prefilled:
    prompt_tokens: int
    computed_tokens: int
    prefill_s: float
    table_build_s: float
    kv_bytes: int
    table_bytes: int

    @property
    def tokens_per_s(self) -> float:
        return self.computed_tokens / self.prefill_s if self.prefill_s else 0.0


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    `text` is the piece of the answer that became whole with it; it may be empty. `pending` is the text that
    is held back because a following token may still change it; it belongs to an answer that ends here.
    `reasoning` is what became whole of the model's reasoning, which is no part of the answer.
    """

    index: int
    id: int
    text: str
    pending: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """Timings and sampling figures of one decode step.

    `attention_ms` is CPU time spent in sampled attention (`retrieve_ms` + `attend_ms`);
    `sampled_share` is keys sampled over keys offered, over all sampled layers and heads, None
    where the method does not sample; `estimated_error` is the root mean square over layers
    and heads of the estimated relative L2 error of an attention output, None likewise. `exact_share` is
    the share of those outputs that were attended exactly because their estimate exceeded the tolerance,
    `resampled_share` of those for which more of the keys were enough, None without one; what was read for
    them counts in `sampled_share`.
    """

    index: int
    step_ms: float
    attention_ms: float
    retrieve_ms: float
    attend_ms: float
    sampled_share: float | None
    estimated_error: float | None
    exact_share: float | None = None
    resampled_share: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes in use now and at the peak. Device fields are None without a GPU.

    `device_kv_bytes` is the part of the device's that holds keys and values of exact and sliding layers.
    """

    host_bytes: int
    host_peak_bytes: int
    host_total_bytes: int
    device_bytes: int | None
    device_peak_bytes: int | None
    device_total_bytes: int | None
    weight_bytes: int
    kv_bytes: int
    table_bytes: int
    device_kv_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The end. `tail` is text held back until now (it belongs to the answer), `reasoning_tail` likewise."""

    reason: FinishReason
    tail: str
    generated_tokens: int
    first_token_s: float | None
    decode_ms_per_token: float | None
    attention_ms_per_token: float | None
    sampled_share: float | None
    estimated_error: float | None
    seed: int | None
    exact_share: float | None = None
    resampled_share: float | None = None
    reasoning_tail: str = ""


Event = (
    Notice
    | LoadProgress
    | Loaded
    | Prompted
    | Indexed
    | PrefillProgress
    | Prefilled
    | Token
    | Step
    | Memory
    | Finished
    | Cited
)
