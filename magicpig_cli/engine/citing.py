"""Where an answer comes from: the attention of its decoding, summed over steps, layers and heads.

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
        self._scores = np.zeros(self._stop - self._start)

    def wants(self, layer: int) -> bool:
        """See `Watcher`."""
        return layer not in self._exact_layers

    def attended(self, layer: int, weighed: list[Weighed]) -> None:
        """See `Watcher`."""
        # Squared: a head that found something gives few tokens much, while every head gives line ends and
        # common words a little at every step, which adds up to more (docs/accuracy.md).
        for part in weighed:
            inside = (part.tokens >= self._start) & (part.tokens < self._stop)
            tokens, weights = part.tokens[inside] - self._start, part.weights[:, inside]
            self._scores[tokens] += (weights.astype(np.float64) ** 2).sum(axis=0)

    def cited(self, count: int) -> Cited:
        """The passages that were attended to most, at most `count`."""
        starts = [self._prompts.token_starts(document) for document in self._documents]
        scores = np.split(self._scores, np.cumsum(self._sizes)[:-1])
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
