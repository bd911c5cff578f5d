"""What a chat shows beside its answers: the text of its commands, figures, and the saved conversation.

Pure text; where it goes is decided by the command (`cli.chat`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magicpig_cli.amounts import byte_size
from magicpig_cli.views.base import Ending
from magicpig_cli.views.text import count
from magicpig_cli.views.track import Track

HELP = """\
/help       this
/stats      what was read and answered so far
/save FILE  write the questions and answers to a new file
/reset      forget the questions and answers; the document stays read
/quit       leave (as does Ctrl-D)
Ctrl-C stops an answer. Anything else is a question."""

WELCOME = "Ask; /help tells the commands, Ctrl-D leaves."


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question, and what is known of its answer."""

    question: str
    track: Track


class NoAnswer:
    """Standard output while the documents are read: nothing."""

    writes_at_once = False

    def show(self, piece: str) -> None:
        pass

    def finish(self, track: Track, ending: Ending) -> None:
        pass


def statistics(reading: Track, exchanges: Sequence[Exchange]) -> str:
    """Lines of figures about a conversation."""
    prompted = reading.prompted
    lines = []
    if prompted is not None:
        names = ", ".join(document.name for document in prompted.documents)
        lines.append(f"{names}: {count(prompted.document_tokens, 'token')}")
    answered = sum(exchange.track.generated_tokens for exchange in exchanges)
    read = sum(e.track.prefilled.computed_tokens for e in exchanges if e.track.prefilled)
    lines.append(
        f"{count(len(exchanges), 'question')}, {count(read, 'token')} read for them, "
        f"{count(answered, 'token')} answered"
    )
    if exchanges:
        last = exchanges[-1].track
        step = "" if last.step_ms is None else f", {last.step_ms:.1f} ms/token in the last answer"
        if last.memory is not None:
            lines.append(
                f"keys and values {byte_size(last.memory.kv_bytes)}, "
                f"tables {byte_size(last.memory.table_bytes)}{step}"
            )
    if reading.index_path is not None:
        lines.append(f"kept in {reading.index_path}")
    return "\n".join(lines)


def transcript(reading: Track, exchanges: Sequence[Exchange]) -> str:
    """A conversation as Markdown."""
    documents = reading.prompted.documents if reading.prompted else ()
    model = reading.loaded.model.id if reading.loaded else "?"
    names = ", ".join(document.name for document in documents)
    parts = [f"# Questions about {names}\n\nAnswered by {model}.\n"]
    for exchange in exchanges:
        question = "\n".join(f"> {line}" for line in exchange.question.splitlines())
        parts.append(f"{question}\n\n{exchange.track.answer}\n")
    return "\n".join(parts)
