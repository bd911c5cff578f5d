"""How a command ends: the one place where errors become sentences and exit statuses.

0 answered, 1 failed, 2 asked wrongly, 3 does not fit, 128+n ended by signal n (130 for Ctrl-C),
141 the reader of standard output went away.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from typing import Any, NoReturn

import typer

from magicpig_cli.cli.signals import Interrupted, Signals
from magicpig_cli.errors import MagicPigError, is_out_of_memory
from magicpig_cli.views.base import Ending, Failure, View
from magicpig_cli.views.streams import Messages, OutputError, ReaderGone, Streams
from magicpig_cli.views.text import harmless

ANSWERED = Ending(0)
READER_GONE = 141

# typer brings its own copy of click in recent releases; the base class is found by name in either.
_CommandLineError = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def ending_of(error: BaseException, signals: Signals | None = None) -> Ending:
    """What an exception means for people and scripts.

    Parameters
    ----------
    error : BaseException
    signals : Signals, optional
        Whose request explains whatever exception came out of an interrupted library.
    """
    if signals is not None and signals.requested is not None:
        return Ending(signals.exit_status, interrupted=True)
    if isinstance(error, KeyboardInterrupt):
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        return Ending(128 + number, interrupted=True)
    if isinstance(error, ReaderGone | BrokenPipeError):
        return Ending(READER_GONE, interrupted=True)
    if isinstance(error, MagicPigError):
        return Ending(error.exit_status, Failure(error.kind, _one_line(error.sentence)))
    if isinstance(error, _CommandLineError):
        return Ending(2, Failure("usage", _command_line_sentence(error)))
    if is_out_of_memory(error):
        return Ending(1, Failure("out_of_memory", _out_of_memory_sentence(error)))
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" while writing {error.filename}" if error.filename else ""
        return Ending(1, Failure("disk_full", f"the disk is full{where}; make room and run again"))
    described = _one_line(str(error))
    sentence = f"unexpected {type(error).__name__}" + (f": {described}" if described else "")
    return Ending(1, Failure("unexpected", f"{sentence}; run again with --verbose to see where"))


def finish(view: View, ending: Ending, messages: Messages) -> int:
    """End both streams of a request, whatever still goes wrong there, and give the exit status."""
    if ending.status == READER_GONE:
        view.clear()
        return READER_GONE
    try:
        view.finish(ending)
    except ReaderGone:
        return ending.status if ending.status else READER_GONE
    except OutputError as error:
        messages.line(f"magicpig: {error.sentence}")
        return ending.status or error.exit_status
    return ending.status


def report(error: BaseException, streams: Streams, verbose: bool, as_json: bool) -> int:
    """Print what ended a command before it had a view of its own, and give its exit status."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, typer.Exit):
        return error.exit_code
    ending = ending_of(error)
    if ending.failure is None:
        return _print_json(ending, streams) if as_json and ending.status != READER_GONE else ending.status
    if verbose:
        print_traceback(error, Messages(streams.err))
    status = ending.status
    if as_json:
        status = _print_json(ending, streams)
    Messages(streams.err).line(f"magicpig: {ending.failure.sentence}")
    return status


def print_traceback(error: BaseException, messages: Messages) -> None:
    """For `--verbose`."""
    messages.raw(harmless("".join(traceback.format_exception(error))))


def leave(status: int) -> NoReturn:
    """End the process; what is still buffered for a reader who left is dropped in silence."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # Everything is said: the interpreter's end is no place for a traceback.
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(status))
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if status == 0:
            status = READER_GONE if isinstance(error, BrokenPipeError) else 1
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
    # A Ctrl-C inside code that is run from a string, as dataclasses are made, stays marked in CPython as
    # unhandled: `python -m` would kill itself by SIGINT, whatever our status. Running more clears that.
    exec("")
    sys.exit(status)


def _print_json(ending: Ending, streams: Streams) -> int:
    from magicpig_cli.views.jsonview import JsonAnswer
    from magicpig_cli.views.streams import Output
    from magicpig_cli.views.track import Track

    try:
        JsonAnswer(Output(streams.out)).finish(Track(), ending)
    except ReaderGone:
        return ending.status
    except OutputError:
        return 1
    return ending.status


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _command_line_sentence(error: Any) -> str:
    if type(error).__name__ == "NoSuchOption":
        close = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
        message = f"there is no option {error.option_name}{close}"
    else:
        message = _one_line(error.format_message()).rstrip(".")
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "magicpig"
    return f"{message}; see `{path} --help`"


def _out_of_memory_sentence(error: BaseException) -> str:
    on_gpu = "cuda" in str(error).lower()
    where = "the GPU" if on_gpu else "this machine"
    advice = "--device cpu, " if on_gpu else ""
    return f"{where} ran out of memory; use {advice}a shorter document, fewer --tables or a smaller --model"
