"""The views for pipes, files and plain terminals: the answer as it comes, one line per phase."""

from __future__ import annotations

from magicpig_cli.amounts import byte_size
from magicpig_cli.engine.events import Cited, Event, Loaded, LoadProgress, Notice, Passage, Prefilled
from magicpig_cli.views.base import Ending
from magicpig_cli.views.streams import Messages, Output
from magicpig_cli.views.text import count, duration, percent
from magicpig_cli.views.track import Track


class StreamedAnswer:
    """Standard output: every piece at once, one newline at the end."""

    writes_at_once = True

    def __init__(self, output: Output) -> None:
        self._output = output
        self._began = False

    def show(self, piece: str) -> None:
        self._output.write(piece)
        self._began = True

    def finish(self, track: Track, ending: Ending) -> None:
        answered = ending.failure is None and not ending.interrupted
        if self._began or answered:
            self._output.write("\n")


class AnswerAtEnd:
    """Standard output where it shares the screen with panels: all of the answer when they are gone."""

    writes_at_once = False

    def __init__(self, output: Output) -> None:
        self._output = output

    def show(self, piece: str) -> None:
        pass  # the panels show it meanwhile

    def finish(self, track: Track, ending: Ending) -> None:
        answered = ending.failure is None and not ending.interrupted
        if track.answer or answered:
            self._output.write(track.answer + "\n")


class PhaseLines:
    """Standard error without a drawing terminal: a line when a phase is over, notices, errors."""

    terminal_fd: int | None = None

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._fetching = ""

    def show(self, event: Event, track: Track) -> None:
        match event:
            case Notice():
                self._messages.line(f"magicpig: {event.text}")
            case LoadProgress() if event.total_bytes and event.phase != self._fetching:
                self._fetching = event.phase
                self._messages.line(f"{event.phase}: {byte_size(event.total_bytes)}")
            case Loaded():
                self._messages.line(loaded_line(event))
            case Prefilled():
                self._messages.line(prefilled_line(event, track))

    def piece(self, text: str) -> None:
        pass

    def thought(self, text: str) -> None:
        pass

    def before_answer(self) -> None:
        pass

    def clear(self) -> None:
        pass

    def suspend(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def finish(self, track: Track, ending: Ending) -> None:
        for line in last_lines(track, ending):
            self._messages.line(line)


class ErrorsOnly(PhaseLines):
    """Standard error with `--quiet`."""

    def show(self, event: Event, track: Track) -> None:
        pass

    def finish(self, track: Track, ending: Ending) -> None:
        if ending.failure:
            self._messages.line(f"magicpig: {ending.failure.sentence}")


def loaded_line(event: Loaded) -> str:
    """What was loaded, where, and how long it took."""
    model, device = event.model, event.device
    where = f"{device.name}, {count(device.threads, 'thread')}" if device.kind == "cpu" else device.name
    bits = model.dtype if model.quantization == "none" else f"{model.dtype}, layers in {model.quantization}"
    return (
        f"loaded {model.id} ({bits}, {byte_size(model.weight_bytes)}) on {where} in {duration(event.load_s)}"
    )


def prefilled_line(event: Prefilled, track: Track) -> str:
    """What was read, how fast, and what is kept of it."""
    return f"{read_line(event, track)}; {_held(event)}"


def read_line(event: Prefilled, track: Track) -> str:
    """What was read, how fast, and what was known: time and speed are of what was computed."""
    speed = f"in {duration(event.prefill_s)} ({event.tokens_per_s:,.0f} tokens/s)"
    whole = f"read {count(event.prompt_tokens, 'token')}"
    if not track.known_tokens:
        return f"{whole} {speed}"
    if not event.computed_tokens:
        return f"{whole}, all of them from {track.known_place}"
    known = f"{track.known_tokens:,} of them from {track.known_place}"
    return f"{whole}, {known}, {event.computed_tokens:,} {speed}"


def _held(event: Prefilled) -> str:
    kept = f"keys and values {byte_size(event.kv_bytes)}"
    if event.table_bytes:
        kept += f", tables {byte_size(event.table_bytes)}"
    return kept


def summary_line(track: Track, columns: int | None = None) -> str:
    """One line about the answer.

    Parameters
    ----------
    track : Track
    columns : int, optional
        Of a terminal; figures that would wrap are left out, the last first.
    """
    answered = f"{track.generated_tokens:,} answered"
    read = f"{count(track.prompted.prompt_tokens, 'token')} read, " if track.prompted else ""
    parts = [read + answered]
    if track.step_ms is not None:
        attention = "" if track.attention_ms is None else f" (CPU attention {track.attention_ms:.1f})"
        parts.append(f"{track.step_ms:.1f} ms/token{attention}")
    if track.sampled_share is not None:
        parts.append(f"sampled {percent(track.sampled_share)} of keys")
    if track.estimated_error is not None:
        parts.append(f"estimated error {percent(track.estimated_error)}")
    if track.exact_share is not None and track.resampled_share is not None:
        more, all_keys = percent(track.resampled_share), percent(track.exact_share)
        parts.append(f"more keys for {more} of heads, all for {all_keys}")
    while columns is not None and len(parts) > 1 and len(", ".join(parts)) > columns:
        parts.pop()
    return ", ".join(parts)


def last_lines(track: Track, ending: Ending, columns: int | None = None) -> list[str]:
    """What stands below the answer: how it ended and its figures."""
    if ending.failure:
        return [f"magicpig: {ending.failure.sentence}"]
    if ending.interrupted:
        n = track.generated_tokens
        when = f"after {count(n, 'token')} of" if n else "before"
        return [f"magicpig: interrupted {when} the answer"]
    if track.finished is None:
        return []
    cut = track.cut_short
    cited = [] if track.cited is None else cited_lines(track.cited)
    return [*cited, *([f"magicpig: {cut}"] if cut else []), summary_line(track, columns)]


def cited_lines(cited: Cited) -> list[str]:
    """The places that an answer's attention rested on, one a line."""
    if not cited.passages:
        return ["magicpig: no place of the document can be cited: nothing of it was attended to"]
    head = "most attended to, with the share of attention:"
    return [head, *(f"{i}. {cited_line(passage)}" for i, passage in enumerate(cited.passages, 1))]


def cited_line(passage: Passage) -> str:
    """`book.md:12 (Chapter 3), 41 %: It was green.`; of a source with pages the page instead of the line."""
    if passage.first_page is None:
        place = f"{passage.source}:{passage.first_line}"
    else:
        place = f"{passage.source}, page {passage.first_page:,}"
    section = f" ({passage.section})" if passage.section else ""
    return f"{place}{section}, {percent(passage.share)}: {passage.quotation}"
