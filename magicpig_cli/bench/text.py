"""The text that a benchmark reads: English prose that every Python brings along."""

from __future__ import annotations

from pydoc_data.topics import topics

SOURCE = "the language reference that Python's help() prints"


def reading_text(n_characters: int) -> str:
    """The first characters of Python's language reference, by topic, repeated if need be."""
    whole = "\n\n".join(str(topics[name]) for name in sorted(topics))
    repeats = -(-n_characters // len(whole))
    return (whole * repeats)[:n_characters]
