"""The state of one conversation about one prompt: a store and a decode attention per layer.

Prefill fills it layer by layer (`begin_prefill`, `end_prefill`); while decoding it is the
attender that the hook calls, once per layer and token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from magicpig_cli.attention.base import AttentionMethod, LayerAttention, LayerContext, StepStats, Weighed
from magicpig_cli.attention.builder import builder
from magicpig_cli.attention.hook import LayerRule
from magicpig_cli.attention.transfer import Transfer, transfer
from magicpig_cli.attention.window import window_layer
from magicpig_cli.lsh.params import LayerShape
from magicpig_cli.store.kv import LayerStore, WindowStore
from magicpig_cli.store.memory import RowMemory


class Watcher(Protocol):
    """Whoever wants to know where the layers look while decoding (`Session.watcher`)."""

    def wants(self, layer: int) -> bool:
        """Whether to compute the weights of this layer."""

    def attended(self, layer: int, weighed: list[Weighed]) -> None:
        """What all query heads of a layer attended to in the step that is being computed."""


@dataclass(frozen=True, slots=True)
class SessionMark:
    """See `Session.mark`."""

    n_tokens: int
    stores: tuple[Any, ...]
    attentions: tuple[Any, ...]


class Session:
    """Stores and attentions of all layers.

    Parameters
    ----------
    method : AttentionMethod
    n_layers : int
    capacity : int
        Tokens to make room for: prompt and answer.
    device : torch.device
        Where the model computes.
    """

    def __init__(self, method: AttentionMethod, n_layers: int, capacity: int, device: torch.device) -> None:
        self.method = method
        self.n_layers = n_layers
        self.capacity = capacity
        self.device = device
        self.stats = StepStats()
        self.stores: list[LayerStore | None] = [None] * n_layers
        self.attentions: list[LayerAttention | None] = [None] * n_layers
        self._contexts: list[LayerContext | None] = [None] * n_layers
        self._windows: list[int | None] = [None] * n_layers
        self._observed: list[torch.Tensor | None] = [None] * n_layers
        self._memory = RowMemory(device)
        self.token_ids: list[int] = []
        self.watcher: Watcher | None = None
        self._transfers: dict[LayerShape, Transfer] = {}
        self._builder = builder(device)
        self.is_prepared = True

    def open_layer(
        self, layer: int, shape: LayerShape, rule: LayerRule, filled: LayerStore | None = None
    ) -> LayerStore:
        """The layer's store, made at its first call, when its module has said how it attends.

        Parameters
        ----------
        layer : int
        shape : LayerShape
        rule : LayerRule
        filled : LayerStore, optional
            To be used instead of an empty one.
        """
        store = self.stores[layer]
        if store is None:
            store = self._empty_store(shape, rule) if filled is None else filled
            way = self._transfers.get(shape) or transfer(self.device, shape)
            self._transfers[shape] = way
            context = LayerContext(
                layer, self.n_layers, shape, rule.scale, rule.softcap, store, self.stats, self.device, way
            )
            self.stores[layer] = store
            self._contexts[layer], self._windows[layer] = context, rule.window
            self.attentions[layer] = self._attention(context, rule.window)
        return store

    def observe(self, layer: int, last_queries: torch.Tensor) -> None:
        """Queries at the end of a layer that was filled from a file, as `close_layer` would get them."""
        self._observed[layer] = last_queries

    def take_layer(self, layer: int, other: Session) -> None:
        """Move a layer that `other` has restored to this session, which then attends with it."""
        shape, rule = other.rule(layer)
        store, observed = other.stores[layer], other.observed(layer)
        self.stores[layer] = None
        self.open_layer(layer, shape, rule, store)
        self.close_layer(layer, observed)

    def rule(self, layer: int) -> tuple[LayerShape, LayerRule]:
        """Shape of an opened layer, and how it attends."""
        context = self._contexts[layer]
        if context is None:
            raise IndexError(f"layer {layer} was not opened")
        return context.shape, LayerRule(context.scale, context.softcap, self._windows[layer])

    def _attention(self, context: LayerContext, window: int | None) -> LayerAttention:
        return self.method.layer(context) if window is None else window_layer(context, window)

    def _empty_store(self, shape: LayerShape, rule: LayerRule) -> LayerStore:
        if rule.window is None:
            return LayerStore(shape.n_kv_heads, shape.head_dim, self.capacity, self._memory)
        return WindowStore(shape.n_kv_heads, shape.head_dim, rule.window, self._memory)

    @property
    def unlocked(self) -> str | None:
        """What to tell people if rows for a GPU could not be page-locked."""
        return self._memory.refusal

    def close_layer(self, layer: int, last_queries: torch.Tensor) -> None:
        """The layer's store holds the whole prompt: let its attention build what it needs, or plan to.

        For a GPU this returns at once and the building goes on beside it (`finish_tables`).
        """
        attention = self.attentions[layer]
        if attention is None:
            raise IndexError(f"layer {layer} was not opened")
        self._observed[layer] = last_queries
        attention.prefilled(last_queries)
        if self.is_prepared:
            self._builder.submit(attention.prepare)

    def finish_tables(self) -> None:
        """Wait for what is being built beside the reading, and raise what went wrong with it.

        Nothing depends on it but figures: whoever needs the tables of a layer waits for them.
        """
        self._builder.wait()

    def drop_tables(self) -> None:
        """The reading was interrupted: begin no more tables. They are built when they are needed."""
        self._builder.drop()

    @property
    def table_build_s(self) -> float:
        """Seconds of building tables, whether anyone waited for them or not."""
        return self._builder.build_s

    def postpone(self) -> None:
        """From now on leave what attentions can build later to `prepare`: reading on needs none of it."""
        self.is_prepared = False

    def prepare(self) -> None:
        """Build whatever was put off; decoding follows."""
        for attention in self.attentions:
            if attention is not None:
                self._builder.submit(attention.prepare)
        self.is_prepared = True
        self._builder.wait()

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One decode step of one layer: store the token's key and value, attend with its query.

        Parameters and result are those of `hook.Attender.attend` with one token; raises
        IndexError for a layer that was never prefilled.
        """
        context, attention = self._contexts[layer], self.attentions[layer]
        if context is None or attention is None:
            raise IndexError(f"layer {layer} was not prefilled")
        own_query = query[:, 0]
        context.store.write(self.n_tokens, *context.transfer.carry(own_query, key, value))
        output, lse = attention.attend(own_query)
        self._show(layer, attention, own_query, lse)
        return output[:, None], lse[:, None]

    def look_again(self) -> None:
        """Show the watcher where the prompt's last token looks, whose attention was part of prefill.

        It is this token that the answer's first token comes from. Attended by the session's method, as every
        later step is.
        """
        if self.watcher is None:
            return
        for layer, attention in enumerate(self.attentions):
            if attention is not None and self.watcher.wants(layer):
                query = self.observed(layer)[:, -1].contiguous()
                _, lse = attention.attend(query)
                self._show(layer, attention, query, lse)

    def _show(self, layer: int, attention: LayerAttention, query: torch.Tensor, lse: torch.Tensor) -> None:
        """Tell the watcher of a layer that it wants, unless the layer only ever sees the end of a text."""
        watcher = self.watcher
        if watcher is not None and self._windows[layer] is None and watcher.wants(layer):
            watcher.attended(layer, attention.weights(query, lse))

    def beside(self, method: AttentionMethod) -> Session:
        """Another method over the same stores, as if it had been prefilled: for comparisons.

        Both sessions write a step's key and value to the same rows, so they must take turns with
        the same tokens.
        """
        other = Session(method, self.n_layers, self.capacity, self.device)
        other.token_ids = list(self.token_ids)
        other.stores = self.stores
        for layer, context in enumerate(self._contexts):
            observed = self.observed(layer)
            if context is None:
                raise IndexError(f"layer {layer} was not prefilled")
            own = replace(context, stats=other.stats)
            other._contexts[layer], other._windows[layer] = own, self._windows[layer]
            other._observed[layer] = observed
            attention = other._attention(own, self._windows[layer])
            attention.prefilled(observed)
            attention.prepare()
            other.attentions[layer] = attention
        return other

    def observed(self, layer: int) -> torch.Tensor:
        """Queries of the last prompt tokens of a prefilled layer, (n_q_heads, at most 64, head_dim)."""
        queries = self._observed[layer]
        if queries is None:
            raise IndexError(f"layer {layer} was not prefilled")
        return queries

    @property
    def n_tokens(self) -> int:
        """Tokens that every layer has seen."""
        return len(self.token_ids)

    def mark(self) -> SessionMark:
        """A point to come back to: the tokens known now."""
        return SessionMark(
            self.n_tokens,
            tuple(store.mark() for store in self.stores if store is not None),
            tuple(attention.mark() for attention in self.attentions if attention is not None),
        )

    def rewind(self, mark: SessionMark) -> None:
        """Forget every token after `mark`, which was taken from this session."""
        del self.token_ids[mark.n_tokens :]
        for store, kept in zip(self.stores, mark.stores, strict=True):
            if store is not None:
                store.rewind(kept)
        for attention, kept in zip(self.attentions, mark.attentions, strict=True):
            if attention is not None:
                attention.rewind(kept)

    @property
    def kv_bytes(self) -> int:
        return sum(store.nbytes for store in self.stores if store is not None)

    @property
    def table_bytes(self) -> int:
        return sum(attention.table_bytes for attention in self.attentions if attention is not None)

    @property
    def device_kv_bytes(self) -> int:
        """Keys and values that stay on the device."""
        return sum(attention.device_kv_bytes for attention in self.attentions if attention is not None)
