"""Tells a model's reasoning from its answer while both are generated.

Models that think aloud mark it in one of two ways: by a pair of tags around the thoughts, of which the chat
template may already have opened the first, or by messages in channels (gpt-oss). Only what is outside is the
answer. A model whose template and vocabulary know no such mark is taken at its word.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from magicpig_cli.engine.detokenize import StreamDecoder

# Qwen, DeepSeek and most others; EXAONE; Magistral.
_TAGS = (("<think>", "</think>"), ("<thought>", "</thought>"), ("[THINK]", "[/THINK]"))
_START, _CHANNEL, _MESSAGE, _END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became whole: of the reasoning and of the answer, either of them often empty."""

    reasoning: str = ""
    answer: str = ""


class AnswerText(Protocol):
    """Takes the ids of one answer as they are generated."""

    def push(self, token_id: int) -> Piece:
        """What became whole with this token."""

    @property
    def pending(self) -> str:
        """Text that is held back, and belongs to an answer that ends here."""

    def finish(self) -> Piece:
        """What was held back."""


def answer_text(tokenizer: Any, reasoning_open: bool) -> AnswerText:
    """How the text of this model's answers is to be read.

    Parameters
    ----------
    tokenizer : transformers tokenizer
    reasoning_open : bool
        The prompt has opened the reasoning already (`opens_reasoning`).
    """
    added = _added_tokens(tokenizer)
    if _CHANNEL in added and _MESSAGE in added:
        return _Channels(tokenizer, added)
    return _Tagged(tokenizer, added, _tags(tokenizer, added), reasoning_open)


def opens_reasoning(tokenizer: Any, prompt_end: str) -> bool:
    """Whether a prompt that ends so has opened the reasoning.

    Parameters
    ----------
    tokenizer : transformers tokenizer
    prompt_end : str
        As the template wrote it; nothing that people wrote.
    """
    tags = _tags(tokenizer, _added_tokens(tokenizer))
    return tags is not None and prompt_end.rstrip().endswith(tags[0])


def _added_tokens(tokenizer: Any) -> dict[str, int]:
    """Ids of the tokens beside the vocabulary, by their text."""
    return {token.content: id_ for id_, token in tokenizer.added_tokens_decoder.items()}


def _tags(tokenizer: Any, added: dict[str, int]) -> tuple[str, str] | None:
    """The tags that this model knows, if any: a model that merely quotes some does not reason."""
    template = tokenizer.chat_template
    known = template if isinstance(template, str) else ""
    for opening, closing in _TAGS:
        if any(tag in added or tag in known for tag in (opening, closing)):
            return opening, closing
    return None


class _Place(Enum):
    """Where in an answer with tags the text has come to."""

    START = auto()  # nothing but blanks so far, and perhaps a part of the opening tag
    REASONING = auto()
    BETWEEN = auto()  # blanks behind the closing tag, which are part of nothing
    ANSWER = auto()


class _Tagged:
    """Reasoning between two tags, spelled out in any number of tokens or in one of their own."""

    def __init__(
        self, tokenizer: Any, added: dict[str, int], tags: tuple[str, str] | None, reasoning_open: bool
    ) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._opening, self._closing = tags or ("", "")
        # Some tokenizers count them as special, and then they are not part of decoded text.
        self._marks = {added[tag]: tag for tag in tags or () if tag in added}
        self._place = _Place.ANSWER if tags is None else _Place.START
        if reasoning_open:
            self._place = _Place.REASONING
        self._held = ""  # may become a tag

    def push(self, token_id: int) -> Piece:
        tag = self._marks.get(token_id)
        if tag is None:
            return self._feed(self._decoder.push(token_id))
        piece = self.finish()
        if tag == self._opening:
            self._place = _Place.REASONING  # at the beginning or, with some models, again further on
        elif self._place is not _Place.ANSWER:
            self._place = _Place.BETWEEN
        return piece

    @property
    def pending(self) -> str:
        if self._place is _Place.REASONING:
            return ""
        held = self._held + self._decoder.pending
        return held if self._place is _Place.ANSWER else held.lstrip()

    def finish(self) -> Piece:
        piece = self._feed(self._decoder.finish())
        held, self._held = self._held, ""
        if self._place is _Place.REASONING:
            return Piece(piece.reasoning + held, piece.answer)
        return Piece(piece.reasoning, piece.answer + held.lstrip())

    def _feed(self, text: str) -> Piece:
        self._held += text
        reasoning = ""
        if self._place is _Place.START:
            bare = self._held.lstrip()
            if bare.startswith(self._opening):
                self._place, self._held = _Place.REASONING, bare.removeprefix(self._opening)
            elif not self._opening.startswith(bare):
                self._place = _Place.ANSWER
        if self._place is _Place.REASONING:
            reasoning, closed, rest = self._held.partition(self._closing)
            if closed:
                self._place, self._held = _Place.BETWEEN, rest
            else:
                kept = _overlap(reasoning, self._closing)
                reasoning, self._held = reasoning[: len(reasoning) - kept], reasoning[len(reasoning) - kept :]
        if self._place is _Place.BETWEEN:
            self._held = self._held.lstrip()
            if self._held:
                self._place = _Place.ANSWER
        if self._place is _Place.ANSWER:
            answer, self._held = self._held, ""
            return Piece(reasoning, answer)
        return Piece(reasoning)


class _Channels:
    """Messages with a header each; the answer is the one in the channel `final`, or one in no channel."""

    def __init__(self, tokenizer: Any, added: dict[str, int]) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._marks = {added[m]: m for m in (_START, _CHANNEL, _MESSAGE, _END) if m in added}
        self._in_header = False
        self._header = ""
        self._channel: str | None = None

    def push(self, token_id: int) -> Piece:
        mark = self._marks.get(token_id)
        if mark is None:
            return self._take(self._decoder.push(token_id))
        piece = self._take(self._decoder.finish())
        if mark == _MESSAGE and self._channel is not None:
            self._channel = self._header.strip()
        elif mark == _CHANNEL:
            self._channel = ""
        elif mark != _MESSAGE:
            self._channel = None
        self._in_header, self._header = mark != _MESSAGE, ""
        return piece

    @property
    def pending(self) -> str:
        return self._decoder.pending if self._is_answer and not self._in_header else ""

    def finish(self) -> Piece:
        return self._take(self._decoder.finish())

    @property
    def _is_answer(self) -> bool:
        return self._channel is None or self._channel.startswith("final")

    def _take(self, text: str) -> Piece:
        if self._in_header:
            self._header += text
            return Piece()
        return Piece(answer=text) if self._is_answer else Piece(text)


def _overlap(text: str, tag: str) -> int:
    """Characters at the end of `text` that may be the beginning of `tag`."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
