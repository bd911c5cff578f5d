"""From token ids to text pieces that are whole: no half characters, no half graphemes."""

from __future__ import annotations

from typing import Any

import regex
from tokenizers.decoders import DecodeStream

_GRAPHEMES = regex.compile(r"\X")


class StreamDecoder:
    """Turns ids into pieces, as they come; the joined pieces are the decoding of all ids.

    The last grapheme is held back until the next one starts, because a combining mark or
    another member of an emoji family may still follow.

    Parameters
    ----------
    tokenizer : transformers tokenizer
    """

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held = ""

    def push(self, token_id: int) -> str:
        """The text that became whole with this token; often empty inside a character."""
        piece = self._stream.step(self._backend, token_id)
        if not piece:
            return ""
        clusters = _GRAPHEMES.findall(self._held + piece)
        self._held = clusters[-1]
        return "".join(clusters[:-1])

    @property
    def pending(self) -> str:
        """The grapheme that is held back."""
        return self._held

    def finish(self) -> str:
        """The grapheme that was held back; bytes that never became a character are dropped."""
        held, self._held = self._held, ""
        return held
