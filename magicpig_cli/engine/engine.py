"""The main path: load a model once, then answer requests as a stream of events.

    prompt -> prefill, layer by layer -> decode, token by token -> events

Nothing here prints and nothing here draws; whoever iterates decides what becomes of the events.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import psutil
import torch

from magicpig_cli.attention.base import AttentionMethod
from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.attention.registry import MethodOptions, build_method
from magicpig_cli.attention.session import Session
from magicpig_cli.documents import Document
from magicpig_cli.engine.decode import decode
from magicpig_cli.engine.events import (
    AttentionInfo,
    DeviceInfo,
    Event,
    Loaded,
    LoadProgress,
    ModelInfo,
    Notice,
    Prefilled,
    Prompted,
)
from magicpig_cli.engine.memory import measure_memory
from magicpig_cli.engine.prefill import decoder_layers, prefill
from magicpig_cli.engine.prompt import Prompt, PromptBuilder
from magicpig_cli.engine.sampler import Sampler
from magicpig_cli.engine.step import make_step
from magicpig_cli.engine.threads import available_cores, use_threads
from magicpig_cli.models.load import LoadedModel, choose_device, load_model
from magicpig_cli.models.profiles import dense_layers
from magicpig_cli.models.sources import resolve

Report = Callable[[LoadProgress | Notice | Loaded], None]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What is fixed when a model is loaded.

    Attributes
    ----------
    model : str
        `auto`, an alias, a hub id, a folder or a .gguf file.
    device, dtype : str
    attention : str
        A name of `attention.registry.METHODS`.
    n_bits, n_tables : int or None
        K and L; None chooses by length.
    dense_layers : tuple of int or None
        None takes the model's profile.
    hash_seed : int
        Draws the hyperplanes.
    threads : int or None
        None takes every core that this process may use.
    chunk_tokens : int
        Tokens that prefill computes at once.
    offline : bool
        Never ask the network.
    """

    model: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    attention: str = "lsh"
    n_bits: int | None = None
    n_tables: int | None = None
    dense_layers: tuple[int, ...] | None = None
    hash_seed: int = 0
    threads: int | None = None
    chunk_tokens: int = 512
    offline: bool = False


@dataclass(frozen=True, slots=True)
class AskRequest:
    """One question about documents, and how to draw the answer's tokens."""

    documents: Sequence[Document]
    question: str
    system: str | None = None
    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


class Engine:
    """A loaded model that answers. Build it with `Engine.load`."""

    def __init__(
        self, settings: EngineSettings, loaded: LoadedModel, model_id: str, device: torch.device
    ) -> None:
        self.settings = settings
        self.model_id = model_id
        self.device = device
        self.n_layers = len(decoder_layers(loaded.model))
        self._loaded = loaded
        self._prompts = PromptBuilder(loaded.tokenizer, model_id, loaded.context_tokens)

    @classmethod
    def load(cls, settings: EngineSettings, report: Report = lambda event: None) -> Engine:
        """Find, fetch if need be, and load the model.

        Parameters
        ----------
        settings : EngineSettings
        report : callable
            Gets `LoadProgress` and `Notice` events meanwhile, and `Loaded` at the end.

        Raises
        ------
        UsageError, ModelUnavailable, DamagedFile, DoesNotFit
        """
        started = perf_counter()
        device = choose_device(settings.device)
        threads = settings.threads or available_cores()
        use_threads(threads)
        source = resolve(
            settings.model,
            offline=settings.offline,
            device_kind=device.type,
            progress=lambda phase, done, total: report(LoadProgress(phase, done, total)),
            notice=lambda sentence: report(Notice(sentence)),
        )
        report(LoadProgress("loading", 0, None))
        loaded = load_model(source.folder, device, settings.dtype)
        engine = cls(settings, loaded, source.id, device)
        info = ModelInfo(
            id=source.id,
            architecture=loaded.architecture,
            parameters=loaded.n_parameters,
            dtype=loaded.weight_dtype,
            quantization="none",
            context_tokens=loaded.context_tokens,
            weight_bytes=loaded.weight_bytes,
        )
        report(Loaded(info, _describe(device, threads), perf_counter() - started))
        return engine

    @torch.inference_mode()
    def generate(self, request: AskRequest) -> Iterator[Event]:
        """Answer one request; closing the iterator ends the work and frees its memory.

        Raises
        ------
        UsageError, DoesNotFit
            Before anything is computed.
        """
        started = perf_counter()
        prompt = self._prompts.build(request.documents, request.question, request.system)
        method = self._method(prompt)
        yield from map(Notice, prompt.notices)
        yield Prompted(
            documents=prompt.documents,
            document_tokens=prompt.document_tokens,
            prompt_tokens=len(prompt.token_ids),
            reused_tokens=0,
            attention=_attention_info(self.settings.attention, method),
        )
        max_tokens = min(request.max_tokens, self._loaded.context_tokens - len(prompt.token_ids))
        session = Session(method, self.n_layers, len(prompt.token_ids) + max_tokens, self.device)
        prefill_started = perf_counter()
        logits = yield from prefill(self._loaded.model, session, prompt.token_ids, self.settings.chunk_tokens)
        yield Prefilled(
            prompt_tokens=len(prompt.token_ids),
            computed_tokens=len(prompt.token_ids),
            prefill_s=perf_counter() - prefill_started,
            table_build_s=session.table_build_s,
            kv_bytes=session.kv_bytes,
            table_bytes=session.table_bytes,
        )
        yield measure_memory(self.device, session, self._loaded.weight_bytes)
        yield from decode(
            logits,
            make_step(self._loaded.model, session),
            session.stats,
            Sampler(request.temperature, request.top_p, request.seed),
            self._loaded.tokenizer,
            self._loaded.stop_ids,
            max_tokens,
            started,
        )
        yield measure_memory(self.device, session, self._loaded.weight_bytes)

    def _method(self, prompt: Prompt) -> AttentionMethod:
        settings = self.settings
        chosen = settings.dense_layers
        options = MethodOptions(
            prompt_tokens=len(prompt.token_ids),
            dense_layers=dense_layers(self.n_layers) if chosen is None else chosen,
            n_bits=settings.n_bits,
            n_tables=settings.n_tables,
            hash_seed=settings.hash_seed,
        )
        return build_method(settings.attention, options)


def _attention_info(name: str, method: AttentionMethod) -> AttentionInfo:
    if isinstance(method, Lsh):
        return AttentionInfo(name, method.params.n_bits, method.params.n_tables, method.dense_layers)
    return AttentionInfo(name, None, None, ())


def _describe(device: torch.device, threads: int) -> DeviceInfo:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return DeviceInfo(properties.name, "cuda", properties.total_memory, threads)
    name = platform.processor() or platform.machine()
    return DeviceInfo(name, "cpu", psutil.virtual_memory().total, threads)
