"""Exact prefill, layer by layer: all chunks of the prompt through layer 0, then layer 1, and so on.

Only one layer's keys and values are on the device at a time, and its weights are used once
per document. The model's own modules do the work: a first pass with silent layers records
what the model would call each layer with; then each layer really runs, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch

from magicpig_cli.attention.causal import causal_attention
from magicpig_cli.attention.hook import LayerRule
from magicpig_cli.attention.session import Session
from magicpig_cli.engine.events import PrefillProgress
from magicpig_cli.lsh.params import LayerShape
from magicpig_cli.models.linear import upcast
from magicpig_cli.store.kv import LayerStore

# Queries kept for methods that choose keys by an observation window (SnapKV uses at most 64).
_OBSERVED_QUERIES = 64


# A chunk's hidden state, (1, n, hidden), and the last layer that it has been through.
Chunk = tuple[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Suspended:
    """An interrupted reading.

    Attributes
    ----------
    layer : int
        The first that is not finished; all tokens have been through those before it.
    chunks_done : int
        Chunks that have been through it as well.
    hidden : sequence of torch.Tensor
        Of all tokens, chunk by chunk, (n, hidden_size).
    keys, values : torch.Tensor
        The layer's own of these chunks, (n_kv_heads, n, head_dim); no tokens where chunks_done is 0.
    queries : torch.Tensor
        Their last queries, (n_q_heads, at most 64, head_dim).
    """

    layer: int
    chunks_done: int
    hidden: Sequence[torch.Tensor]
    keys: torch.Tensor
    values: torch.Tensor
    queries: torch.Tensor


class Keeper(Protocol):
    """Keeps what a reading has computed, should it be wanted again."""

    def layer_finished(self, layer: int) -> None:
        """The session holds all tokens of this layer; may be told more than once."""

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""

    def checkpoint(self, suspended: Suspended) -> None:
        """The reading goes on, but should it be killed, another can begin here."""

    def suspend(self, suspended: Suspended) -> None:
        """The reading is being interrupted."""


class LayerPrefill:
    """The attender of one layer's prefill: exact attention, keys and values gathered for the store.

    They are rounded to bf16 before anything attends to them, so that a prompt read in one go
    and one continued from its store compute the same numbers.
    """

    def __init__(self, session: Session, n_new: int) -> None:
        self._session = session
        self._n_new = n_new
        self._layer = -1
        self._filled = self._n_known = 0
        self._keys = self._values = self._queries = torch.empty(0)
        self._store: LayerStore | None = None
        self._suspended: Suspended | None = None

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `hook.Attender`; chunks of one layer come in order, then those of the next."""
        if layer != self._layer:
            self._begin(layer, query, key, rule)
        stop = self._filled + key.shape[1]
        self._keys[:, self._filled : stop] = key.bfloat16()
        self._values[:, self._filled : stop] = value.bfloat16()
        self._filled = stop
        self._queries = torch.cat([self._queries, query], dim=1)[:, -_OBSERVED_QUERIES:]
        return causal_attention(
            query, self._keys[:, :stop], self._values[:, :stop], rule.scale, rule.softcap, rule.window
        )

    def _begin(self, layer: int, query: torch.Tensor, key: torch.Tensor, rule: LayerRule) -> None:
        """Room for the layer, and what its store already holds."""
        session = self._session
        self._layer = -1  # until all of it is in order
        shape = LayerShape(query.shape[0], key.shape[0], key.shape[2])
        store = session.open_layer(layer, shape, rule)
        n_known = session.n_tokens - store.first_token
        size = (shape.n_kv_heads, n_known + self._n_new, shape.head_dim)
        if self._keys.shape != size:
            self._keys = torch.empty(size, dtype=query.dtype, device=query.device)
            self._values = torch.empty_like(self._keys)
        store.send(store.first_token, self._keys[:, :n_known], self._values[:, :n_known])
        self._queries = query[:, :0]
        self._n_known = self._filled = n_known
        self._store = store
        if self._suspended is not None and self._suspended.layer == layer and self._suspended.chunks_done:
            self._take_up(self._suspended)
        self._layer = layer

    def _take_up(self, suspended: Suspended) -> None:
        """What an interrupted reading had computed of the layer that begins now."""
        self._filled = self._n_known + suspended.keys.shape[1]
        self._keys[:, self._n_known : self._filled] = suspended.keys
        self._values[:, self._n_known : self._filled] = suspended.values
        self._queries = suspended.queries.to(self._queries)

    def go_on_from(self, suspended: Suspended) -> None:
        """Begin the layer of an interrupted reading where that one stood."""
        self._suspended = suspended

    def suspended(self, hidden: Sequence[Chunk], keeper: Keeper) -> Suspended | None:
        """What has been computed, for a later reading to go on from; None if there is nothing yet.

        Parameters
        ----------
        hidden : sequence of (layer, tensor)
            The chunks, and the last layer that each has been through (-1 for none).
        keeper : Keeper
            Told of the layer that all chunks have been through, should it not know yet.
        """
        layer = max(done for done, _ in hidden)
        if layer < 0:
            return None
        chunks_done = sum(done == layer for done, _ in hidden)
        if chunks_done == len(hidden):
            if self._layer == layer:  # interrupted on its way to the store
                self.finish_layer()
            keeper.layer_finished(layer)
            layer, chunks_done = layer + 1, 0
        states = [state[0] for _, state in hidden]
        if not chunks_done:
            nothing = torch.empty(0, 0, 0)
            return Suspended(layer, 0, states, nothing, nothing, nothing)
        if self._layer != layer:  # not begun since an earlier interruption
            return self._suspended
        stop = self._n_known + sum(len(state) for state in states[:chunks_done])
        new = slice(self._n_known, stop)
        return Suspended(layer, chunks_done, states, self._keys[:, new], self._values[:, new], self._queries)

    def finish_layer(self) -> None:
        """Move the layer's new keys and values to its store, and tell its attention."""
        session, n_known = self._session, self._n_known
        if self._store is None:
            raise RuntimeError("the layer never attended, so there is nothing to store")
        self._store.write(session.n_tokens, self._keys[:, n_known:], self._values[:, n_known:])
        session.close_layer(self._layer, self._queries)
        self._layer = -1


def prefill(
    model: Any,
    session: Session,
    token_ids: Sequence[int],
    chunk_tokens: int,
    span: tuple[float, float] = (0.0, 1.0),
    keeper: Keeper | None = None,
    suspended: Suspended | None = None,
) -> Generator[PrefillProgress, None, torch.Tensor]:
    """Read `token_ids` after what the session already holds.

    Parameters
    ----------
    model : torch.nn.Module
        A transformers causal language model loaded with our attention.
    session : Session
        Extended by the tokens when the generator ends; unchanged in length before.
    token_ids : sequence of int
        At least one.
    chunk_tokens : int
        Tokens computed at once.
    span : tuple of float
        The part of the whole reading that this call is, as its `fraction` tells.
    keeper : Keeper, optional
        Told of each finished layer and of an interruption; decides when to take a checkpoint.
    suspended : Suspended, optional
        Go on from there: an interrupted reading of the same tokens in the same chunks, whose finished
        layers the session already holds.

    Yields
    ------
    PrefillProgress
        After each chunk of each layer.

    Returns
    -------
    torch.Tensor
        Logits of the last token, (vocabulary,), float32 (the generator's return value).
    """
    started = perf_counter()
    layers = decoder_layers(model)
    device = next(model.parameters()).device
    starts = range(0, len(token_ids), chunk_tokens)
    chunks = [torch.tensor([token_ids[s : s + chunk_tokens]], device=device) for s in starts]
    calls, embedded = _record_calls(model, layers, chunks, session.n_tokens)
    cost = _chunk_costs(model, session.n_tokens, [c.shape[1] for c in chunks])
    known, all_tokens = session.n_tokens, session.n_tokens + len(token_ids)
    share = (span[1] - span[0]) / (sum(cost) * len(layers))
    fraction = span[0]
    attender = LayerPrefill(session, len(token_ids))
    hidden: list[Chunk] = [(-1, state) for state in embedded]
    first = 0
    if suspended is not None:
        hidden = _taken_up(suspended, embedded)
        attender.go_on_from(suspended)
        first = suspended.layer
        fraction += share * (first * sum(cost) + sum(cost[: suspended.chunks_done]))
    try:
        for index in range(first, len(layers)):
            layer = layers[index]
            with upcast(layer):
                for i, chunk_calls in enumerate(calls):
                    layers_done, state = hidden[i]
                    if layers_done < index:
                        args, kwargs = chunk_calls[index]
                        output = layer(state, *args, **(kwargs | {"magicpig": attender}))
                        # In one store, so that an interruption finds the chunk before or after the layer.
                        hidden[i] = (index, _tensor(output))
                        fraction += cost[i] * share
                    done = min(all_tokens, known + (i + 1) * chunk_tokens)
                    yield PrefillProgress(
                        index, len(layers), done, all_tokens, fraction, perf_counter() - started
                    )
                    if done < all_tokens:
                        _checkpoint(attender, hidden, keeper)
            attender.finish_layer()
            if keeper is not None:
                keeper.layer_finished(index)
                _checkpoint(attender, hidden, keeper)
    except BaseException as reason:
        session.drop_tables()
        if keeper is not None and isinstance(reason, KeyboardInterrupt | GeneratorExit):
            state_now = attender.suspended(hidden, keeper)
            if state_now is not None:
                keeper.suspend(state_now)
        raise
    session.token_ids.extend(token_ids)
    return _last_logits(model, layers, chunks[-1], hidden[-1][1][:, -1:], session.n_tokens)


def _checkpoint(attender: LayerPrefill, hidden: Sequence[Chunk], keeper: Keeper | None) -> None:
    """Let the keeper note where the reading stands, if it is time."""
    if keeper is not None and keeper.is_due():
        state_now = attender.suspended(hidden, keeper)
        if state_now is not None:
            keeper.checkpoint(state_now)


def _taken_up(suspended: Suspended, embedded: list[torch.Tensor]) -> list[Chunk]:
    """The chunks' states as an interrupted reading left them."""
    return [
        (suspended.layer if i < suspended.chunks_done else suspended.layer - 1, state[None].to(like))
        for i, (state, like) in enumerate(zip(suspended.hidden, embedded, strict=True))
    ]


def decoder_layers(model: Any) -> list[Any]:
    """The model's decoder layers in order; they are found by name, as transformers has it everywhere."""
    return list(model.get_decoder().layers)


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _record_calls(
    model: Any, layers: list[Any], chunks: list[torch.Tensor], n_known: int
) -> tuple[list[list[Call]], list[torch.Tensor]]:
    """What the model calls each layer with, per chunk, and the embedded chunks.

    Position embeddings differ between layers in some architectures and are shared in most;
    recorded, they are whatever the model itself would pass.
    """
    calls: list[list[Call]] = []
    hidden: list[torch.Tensor] = []

    def recorder(state: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not calls[-1]:
            hidden.append(state)
        calls[-1].append((args, kwargs))
        return state

    position = n_known
    with _replaced_forward(layers, recorder):
        for chunk in chunks:
            calls.append([])
            stop = position + chunk.shape[1]
            positions = torch.arange(position, stop, device=chunk.device)[None]
            model.get_decoder()(input_ids=chunk, position_ids=positions, use_cache=False)
            position = stop
    return calls, hidden


def _last_logits(
    model: Any,
    layers: list[Any],
    chunk: torch.Tensor,
    last_hidden: torch.Tensor,
    n_tokens: int,
) -> torch.Tensor:
    """The model's own head on the last token: final norm, projection, whatever scaling it has."""
    position = torch.tensor([[n_tokens - 1]], device=chunk.device)
    with _replaced_forward(layers, lambda *args, **kwargs: last_hidden):
        logits = model(input_ids=chunk[:, -1:], position_ids=position, use_cache=False).logits
    return logits[0, -1].float()


@contextmanager
def _replaced_forward(layers: list[Any], forward: Callable[..., torch.Tensor]) -> Iterator[None]:
    for layer in layers:
        layer.forward = forward
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own is found again


def _tensor(output: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


def prefill_work(model: Any, n_known: int, n_new: int) -> float:
    """Work of reading `n_new` tokens after `n_known`, in arbitrary units."""
    return _chunk_costs(model, n_known, [n_new])[0] if n_new else 0.0


def _chunk_costs(model: Any, n_known: int, sizes: list[int]) -> list[float]:
    """Relative work of each chunk in one layer: its linear part, and attention that grows with position."""
    config = model.config.get_text_config()
    hidden, intermediate = config.hidden_size, getattr(config, "intermediate_size", 4 * config.hidden_size)
    per_token = hidden * (4 * hidden + 3 * intermediate)
    per_pair = 2 * hidden
    costs, position = [], n_known
    for size in sizes:
        costs.append(size * (per_token + per_pair * (position + size / 2)))
        position += size
    return costs
