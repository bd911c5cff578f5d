"""Where an answer comes from: the peaks of the attention of its decoding, summed over layers and heads.

The weights are those of the estimator itself, of the few keys that were read anyway. They become a score
for every token of the documents, and the scores become passages (`engine.passages`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from magicpig_cli.attention.base import AttentionMethod, Weighed
from magicpig_cli.attention.session import Session, Watcher
from magicpig_cli.documents import Document
from magicpig_cli.engine.events import Cited
from magicpig_cli.engine.passages import find_passages
from magicpig_cli.engine.prompt import Prompt, PromptBuilder

# A weight below this is not kept, in a text of `_FULL` tokens or more; below it in proportion, so that what a
# head spreads evenly over a short text counts too. At most 100 keys per head and step remain, usually 7.
_LEAST = 0.01
_FULL = 4_000
# Kept weights of a layer that wait to be folded into its sums and maxima.
_WAITING = 1 << 16


class LayerLooks:
    """Where the heads of one layer looked: for each pair of head and token the highest weight and the mean.

    Parameters
    ----------
    n_tokens : int
        Tokens that may be looked at, counted from 0.
    """

    def __init__(self, n_tokens: int) -> None:
        self._n_tokens = n_tokens
        self._least = _LEAST * min(1.0, n_tokens / _FULL)
        self._steps = 0
        self._pairs: np.ndarray = np.empty(0, np.int64)
        self._sums: np.ndarray = np.empty(0)
        self._highest: np.ndarray = np.empty(0)
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._n_waiting = 0

    def add(self, tokens: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> None:
        """One step.

        Parameters
        ----------
        tokens, weights : sequences of numpy.ndarray
            As in `Weighed`, for groups of heads that follow each other: (n,), and (n_heads, n).
        """
        self._steps += 1
        first = 0
        for own, weight in zip(tokens, weights, strict=True):
            heads, columns = np.nonzero(weight >= self._least)
            pairs = (heads + first) * self._n_tokens + own[columns]
            self._waiting.append((pairs, weight[heads, columns].astype(np.float64)))
            self._n_waiting += len(pairs)
            first += len(weight)
        if self._n_waiting >= _WAITING:
            self._fold()

    @property
    def n_kept(self) -> int:
        """Numbers held at present, in pairs of head and token: 24 bytes each, 16 while they wait."""
        return len(self._pairs) + self._n_waiting

    def scores(self) -> np.ndarray:
        """For each token how far its peaks stand out, float64, (n_tokens,).

        Summed over heads: the square of the highest weight minus the mean over the other steps. What a head
        looks at in every step, as at the first words of a text, has no peak. Of one step there are no others.
        """
        self._fold()
        others = (self._sums - self._highest) / max(1, self._steps - 1)
        return np.bincount(
            self._pairs % self._n_tokens,
            weights=(self._highest - others) ** 2,
            minlength=self._n_tokens,
        )

    def _fold(self) -> None:
        """What waits becomes part of the sums and maxima, so that memory does not grow with the answer."""
        pairs = np.concatenate([self._pairs, *(pairs for pairs, _ in self._waiting)])
        weights = [weight for _, weight in self._waiting]
        sums, highest = (np.concatenate([kept, *weights]) for kept in (self._sums, self._highest))
        self._pairs, place = np.unique(pairs, return_inverse=True)
        self._sums = np.bincount(place, weights=sums, minlength=len(self._pairs))
        self._highest = np.zeros(len(self._pairs))
        np.maximum.at(self._highest, place, highest)
        self._waiting, self._n_waiting = [], 0


class Citing:
    """Watches the decoding of one answer (an `attention.session.Watcher`).

    Parameters
    ----------
    prompts : PromptBuilder
        That built the prompt.
    documents : sequence of Document
    prompt : Prompt
    method : AttentionMethod
        Layers that it leaves exact are not watched: they attend broadly, and all their keys would count.
    """

    def __init__(
        self,
        prompts: PromptBuilder,
        documents: Sequence[Document],
        prompt: Prompt,
        method: AttentionMethod,
    ) -> None:
        self._prompts, self._documents = prompts, documents
        self._exact_layers: tuple[int, ...] = getattr(method, "dense_layers", ())
        self._sizes = [document.tokens or 0 for document in prompt.documents]
        self._stop = prompt.prefix_tokens
        self._start = self._stop - sum(self._sizes)
        self._looks: dict[int, LayerLooks] = {}

    def wants(self, layer: int) -> bool:
        """See `Watcher`."""
        return layer not in self._exact_layers

    def attended(self, layer: int, weighed: list[Weighed]) -> None:
        """See `Watcher`."""
        # Peaks, squared: a head that found something gives few tokens much, and only where the answer needs
        # it; line ends, common words and the text's beginning get theirs at every step (docs/accuracy.md).
        inside = [(part.tokens >= self._start) & (part.tokens < self._stop) for part in weighed]
        looks = self._looks.setdefault(layer, LayerLooks(self._stop - self._start))
        looks.add(
            [part.tokens[kept] - self._start for part, kept in zip(weighed, inside, strict=True)],
            [part.weights[:, kept] for part, kept in zip(weighed, inside, strict=True)],
        )

    def cited(self, count: int) -> Cited:
        """The passages that stand out most, at most `count`."""
        starts = [self._prompts.token_starts(document) for document in self._documents]
        total = np.zeros(self._stop - self._start)
        for looks in self._looks.values():
            total += looks.scores()
        scores = np.split(total, np.cumsum(self._sizes)[:-1])
        return Cited(find_passages(self._documents, starts, scores, count))


@contextmanager
def watched(session: Session, watcher: Watcher | None) -> Iterator[None]:
    """Let someone watch the attention of the prompt's last token, and of every step until the end."""
    session.watcher = watcher
    try:
        session.look_again()
        yield
    finally:
        session.watcher = None
