"""The main path: load a model once, then answer requests as a stream of events.

    prompt -> prefill, layer by layer -> decode, token by token -> events

Nothing here prints and nothing here draws; whoever iterates decides what becomes of the events.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import psutil
import torch

from magicpig_cli.attention.base import AttentionMethod
from magicpig_cli.attention.lsh import Lsh
from magicpig_cli.attention.registry import MethodOptions, build_method
from magicpig_cli.attention.session import Session, SessionMark
from magicpig_cli.documents import Document
from magicpig_cli.engine.citing import Citing, watched
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
    Token,
)
from magicpig_cli.engine.fingerprint import model_fingerprint
from magicpig_cli.engine.keeping import Keeping
from magicpig_cli.engine.library import Library
from magicpig_cli.engine.memory import measure_memory
from magicpig_cli.engine.prefill import decoder_layers, prefill, prefill_work
from magicpig_cli.engine.prompt import Prompt, PromptBuilder, Turn
from magicpig_cli.engine.reasoning import answer_text
from magicpig_cli.engine.room import require_reading
from magicpig_cli.engine.sampler import Sampler
from magicpig_cli.engine.step import make_step
from magicpig_cli.engine.threads import available_cores, use_threads
from magicpig_cli.engine.warmup import compile_kernels
from magicpig_cli.models.bits import refuse_gguf
from magicpig_cli.models.cachedir import writable_root
from magicpig_cli.models.load import LoadedModel, choose_device, load_model
from magicpig_cli.models.machine import cpu_name
from magicpig_cli.models.profiles import dense_layers
from magicpig_cli.models.rotation import stretch_notice
from magicpig_cli.models.sources import resolve
from magicpig_cli.store.index_folder import INDEXES
from magicpig_cli.store.index_meta import ModelKey

Report = Callable[[LoadProgress | Notice | Loaded], None]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What is fixed when a model is loaded.

    Attributes
    ----------
    model : str
        `auto`, an alias, a hub id, a folder or a .gguf file.
    device, dtype : str
    quantize : str
        none, int8 or int4: bits of the layers' matrices.
    stretch : float or None
        Stretch positions to this many times the trained context.
    attention : str
        A name of `attention.registry.METHODS`.
    n_bits, n_tables, min_collisions : int or None
        K, L and M; None chooses by length.
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
    cache : bool
        Keep on disk what was read, and look there before reading.
    budget : float or None
        Share of the keys that a method reads, for those that are told; None takes its default.
    tolerance : float or None
        Relative error of an attention output that the method keeps to; None for no promise.
    """

    model: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    quantize: str = "none"
    stretch: float | None = None
    attention: str = "lsh"
    n_bits: int | None = None
    n_tables: int | None = None
    min_collisions: int | None = None
    dense_layers: tuple[int, ...] | None = None
    hash_seed: int = 0
    threads: int | None = None
    chunk_tokens: int = 512
    offline: bool = False
    cache: bool = False
    budget: float | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class AskRequest:
    """One question about documents, and how to draw the answer's tokens.

    `history` are the turns before it, if it is part of a conversation. `passages` is how many places of the
    documents to cite, 0 for none.
    """

    documents: Sequence[Document]
    question: str
    system: str | None = None
    history: tuple[Turn, ...] = ()
    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    passages: int = 0


@dataclass(slots=True)
class Reading:
    """A session that has read documents, and the point behind them that later questions come back to.

    `index` is where a part of it was read from just now, which took `open_s`.
    """

    method: AttentionMethod
    session: Session
    mark: SessionMark | None = None
    index: Path | None = None
    open_s: float = 0.0


class Engine:
    """A loaded model that answers. Build it with `Engine.load`."""

    def __init__(
        self,
        settings: EngineSettings,
        loaded: LoadedModel,
        model_id: str,
        device: torch.device,
        library: Library | None = None,
    ) -> None:
        self.settings = settings
        self.model_id = model_id
        self.device = device
        self.n_layers = len(decoder_layers(loaded.model))
        self.loaded = loaded
        stretchable = loaded.shape is not None and loaded.shape.rope == "default"
        self._prompts = PromptBuilder(loaded.tokenizer, model_id, loaded.context_tokens, stretchable)
        self._reading: Reading | None = None
        self._library = library
        self._told_unlocked = False

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
        refuse_gguf(settings.model, settings.quantize)
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
        loaded = load_model(
            source.folder, device, settings.dtype, source.id, settings.quantize, settings.stretch
        )
        if settings.stretch is not None:
            report(Notice(stretch_notice(source.id, loaded.context_tokens, settings.stretch)))
        report(LoadProgress("preparing kernels (a minute, once after an installation)", 0, None))
        compile_kernels(loaded.model)
        library = None
        if settings.cache:
            library = _open_library(source.folder, source.id, loaded, threads, report)
        engine = cls(settings, loaded, source.id, device, library)
        info = ModelInfo(
            id=source.id,
            architecture=loaded.architecture,
            parameters=loaded.n_parameters,
            dtype=loaded.weight_dtype,
            quantization=loaded.quantization,
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
        prompt = self._prompts.build(request.documents, request.question, request.system, request.history)
        max_tokens = min(request.max_tokens, self.loaded.context_tokens - len(prompt.token_ids))
        with Keeping(self._library) as keeping:
            logits = yield from self._prefilled(prompt, max_tokens, keeping)
            if logits is None or self._reading is None:
                raise RuntimeError("a prompt with a question leaves something to read")
            session = self._reading.session
            citing = None
            if request.passages:
                citing = Citing(self._prompts, request.documents, prompt, session.method)
            with watched(session, citing):
                steps = decode(
                    logits,
                    make_step(self.loaded.model, session),
                    session.stats,
                    Sampler(request.temperature, request.top_p, request.seed),
                    answer_text(self.loaded.tokenizer, prompt.reasoning_open),
                    self.loaded.stop_ids,
                    max_tokens,
                    started,
                )
                yield from self._tables_after_first(steps, session, max_tokens, keeping)
            if citing is not None:
                yield citing.cited(request.passages)
            yield measure_memory(self.device, session, self.loaded.weight_bytes)
            yield from keeping.outcome()

    def _tables_after_first(
        self, steps: Iterator[Event], session: Session, max_tokens: int, keeping: Keeping
    ) -> Iterator[Event]:
        """The events of decoding; what a session from an index has put off is built behind the first token.

        That token comes of exact attention alone, so nobody need wait for tables to see it.
        """
        for event in steps:
            yield event
            if isinstance(event, Token) and not session.is_prepared and event.index + 1 < max_tokens:
                session.prepare()
                yield from keeping.notices()
                yield measure_memory(self.device, session, self.loaded.weight_bytes)

    @torch.inference_mode()
    def read(self, documents: Sequence[Document], system: str | None = None) -> Iterator[Event]:
        """Read documents for questions that come later, and keep them on disk; no answer.

        Raises
        ------
        UsageError, DoesNotFit
            Before anything is computed.
        """
        prompt = self._prompts.prefix(documents, system)
        with Keeping(self._library) as keeping:
            yield from self._prefilled(prompt, 0, keeping)
            yield from keeping.outcome()

    @property
    def keeps(self) -> bool:
        """Whether there is a place on the disk for what it reads."""
        return self._library is not None

    def close(self) -> None:
        """Let go of the documents read, and of their indexes."""
        self._reading = None
        if self._library is not None:
            self._library.close()

    def _prefilled(
        self, prompt: Prompt, max_tokens: int, keeping: Keeping
    ) -> Generator[Event, None, torch.Tensor | None]:
        """Read a prompt, or as much of it as is not known from before; tell about it.

        Gives the logits of the prompt's last token, None if there was nothing to read.
        """
        method = self._method(prompt)
        reading = yield from self._reading_of(prompt, method, len(prompt.token_ids) + max_tokens, keeping)
        session = reading.session
        if not max_tokens:
            session.postpone()
        reused = session.n_tokens
        yield from map(Notice, prompt.notices)
        yield from keeping.notices()
        yield Prompted(
            documents=prompt.documents,
            document_tokens=prompt.document_tokens,
            prompt_tokens=len(prompt.token_ids),
            reused_tokens=reused,
            attention=_attention_info(self.settings, method),
            index_path=None if reading.index is None else str(reading.index),
            open_s=reading.open_s,
        )
        prefill_started = perf_counter()
        logits = yield from self._read(reading, prompt, keeping)
        session.finish_tables()
        yield Prefilled(
            prompt_tokens=len(prompt.token_ids),
            computed_tokens=len(prompt.token_ids) - reused,
            prefill_s=perf_counter() - prefill_started,
            table_build_s=session.table_build_s,
            kv_bytes=session.kv_bytes,
            table_bytes=session.table_bytes,
        )
        if session.unlocked is not None and not self._told_unlocked:
            self._told_unlocked = True
            yield Notice(session.unlocked)
        yield measure_memory(self.device, session, self.loaded.weight_bytes)
        return logits

    def _read(
        self, reading: Reading, prompt: Prompt, keeping: Keeping
    ) -> Generator[Event, None, torch.Tensor | None]:
        """Prefill what the session lacks: the documents, a mark to come back to, then the question."""
        session, chunk = reading.session, self.settings.chunk_tokens
        known, prefix, whole = session.n_tokens, prompt.prefix_tokens, len(prompt.token_ids)
        model = self.loaded.model
        work = prefill_work(model, known, max(0, prefix - known))
        rest = prefill_work(model, max(known, prefix), whole - max(known, prefix))
        boundary = work / (work + rest) if work + rest else 1.0
        logits = None
        if known < prefix:
            document = prompt.token_ids[known:prefix]
            keeper, suspended = keeping.begin(prompt, session, chunk)
            yield from keeping.notices()
            reading_it = prefill(model, session, document, chunk, (0.0, boundary), keeper, suspended)
            logits = yield from keeping.telling(reading_it)
            reading.mark = session.mark()
            keeping.finish()
        question = prompt.token_ids[session.n_tokens :]
        if question:
            logits = yield from prefill(model, session, question, chunk, (boundary, 1.0))
        return logits

    def _reading_of(
        self, prompt: Prompt, method: AttentionMethod, capacity: int, keeping: Keeping
    ) -> Generator[Notice, None, Reading]:
        """What is known of this prompt: from the last reading, else from an index on disk, else nothing.

        A prompt that goes on where the last one ended (a chat) keeps every token; one that asks
        something else of the same documents comes back to the mark at their end.
        """
        reading, self._reading = self._reading, None
        if reading is not None and reading.method == method and reading.mark is not None:
            reading.index, reading.open_s = None, 0.0
            session = reading.session
            if not _is_proper_prefix(session.token_ids, prompt.token_ids):
                session.rewind(reading.mark)
            if _is_proper_prefix(session.token_ids, prompt.token_ids):
                self._reading = reading
                return reading
        require_reading(self.loaded.shape, capacity, method, self.settings, self.device)
        yield from keeping.claim(prompt)
        self._reading = self._opened(prompt, method, capacity)
        return self._reading

    def _opened(self, prompt: Prompt, method: AttentionMethod, capacity: int) -> Reading:
        """A reading from the library, or a fresh one."""

        def empty() -> Session:
            return Session(method, self.n_layers, capacity, self.device)

        started = perf_counter()
        opened = None
        if self._library is not None:
            self._library.let_go()
            opened = self._library.open_session(prompt.token_ids[: prompt.prefix_tokens], empty)
        if opened is None:
            return Reading(method, empty())
        mark = opened.session.mark() if opened.complete else None
        return Reading(method, opened.session, mark, opened.path, perf_counter() - started)

    def _method(self, prompt: Prompt) -> AttentionMethod:
        settings = self.settings
        chosen = settings.dense_layers
        options = MethodOptions(
            # Not the whole prompt: every question about a document must find the tables of its reading.
            prompt_tokens=prompt.prefix_tokens,
            dense_layers=dense_layers(self.n_layers) if chosen is None else chosen,
            n_bits=settings.n_bits,
            n_tables=settings.n_tables,
            min_collisions=settings.min_collisions,
            hash_seed=settings.hash_seed,
            budget=settings.budget,
            tolerance=settings.tolerance,
        )
        return build_method(settings.attention, options)


def _open_library(
    folder: Path, model_id: str, loaded: LoadedModel, threads: int, report: Report
) -> Library | None:
    """The library in the cache folder; None, with a notice, if there can be none."""
    fingerprint = model_fingerprint(folder, loaded.model.config, loaded.weight_dtype, loaded.quantization)
    key = ModelKey(fingerprint, model_id, loaded.weight_dtype, loaded.quantization)
    try:
        return Library.open(writable_root(lambda text: report(Notice(text))) / INDEXES, key, threads)
    except OSError as error:
        report(Notice(f"what is read cannot be kept: {(error.strerror or str(error)).lower()}"))
        return None


def _is_proper_prefix(known: Sequence[int], prompt: Sequence[int]) -> bool:
    return len(known) < len(prompt) and list(prompt[: len(known)]) == known


def _attention_info(settings: EngineSettings, method: AttentionMethod) -> AttentionInfo:
    hashing: tuple[int | None, int | None, int | None] = (None, None, None)
    if isinstance(method, Lsh):
        hashing = (method.params.n_bits, method.params.n_tables, method.params.min_collisions)
    # Rivals have dense layers too; exact attention names none.
    exact_layers = getattr(method, "dense_layers", ())
    return AttentionInfo(settings.attention, *hashing, exact_layers, settings.tolerance)


def _describe(device: torch.device, threads: int) -> DeviceInfo:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return DeviceInfo(properties.name, "cuda", properties.total_memory, threads)
    return DeviceInfo(cpu_name(), "cpu", psutil.virtual_memory().total, threads)
