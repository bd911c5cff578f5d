"""What the live screen costs while an answer is written.

python benchmarks/drawing.py [--model MODEL] [--rounds N] [--tokens N] [--screen 120x30] FILE QUESTION

The document is read once; then the same question is answered in turns, with the live screen on a
pseudo-terminal that another process reads, and with lines that go to the null device. Prints the time from
the first token to the end of the answer, per token, for both, and what the drawing thread itself took.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
os.environ["TERM"] = "xterm-256color"

# A terminal's emulator is another program; this one takes what it is given and shows nothing.
_READER = "import os\nwhile os.read(0, 65536): pass"


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer: the time between its first token and its end, and the drawing's share of it."""

    ms_per_token: float
    frames_per_s: float
    drawing_share: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--screen", default="120x30", metavar="COLUMNSxROWS")
    parser.add_argument("file", type=Path)
    parser.add_argument("question")
    arguments = parser.parse_args()
    columns, rows = map(int, arguments.screen.split("x"))

    from magicpig_cli.documents import read_sources
    from magicpig_cli.engine.conversation import Conversation
    from magicpig_cli.engine.engine import AskRequest, Engine, EngineSettings

    engine = Engine.load(EngineSettings(model=arguments.model, device="cpu"))
    documents = read_sources([str(arguments.file)], None)
    for _ in engine.read(documents):
        pass
    request = AskRequest(documents, "", max_tokens=arguments.tokens)
    conversation = Conversation(engine, request)

    def answer(fd: int) -> Answered:
        conversation.reset()
        return _answered(conversation.ask(arguments.question), fd)

    plain, drawn = [], []
    with _terminal(columns, rows) as terminal, open(os.devnull, "wb") as null:
        answer(null.fileno())  # caches are as warm for the first round as for the last
        for i in range(arguments.rounds):
            for kind in ((plain, null.fileno()), (drawn, terminal))[:: 1 if i % 2 else -1]:
                kind[0].append(answer(kind[1]))
    ratios = [d.ms_per_token / p.ms_per_token for d, p in zip(drawn, plain, strict=True)]
    print(f"| screen {columns} x {rows} | plain lines | live screen |\n|---|---|---|")
    print(f"| ms/token, median | {_median(plain):.2f} | {_median(drawn):.2f} |")
    print(f"| ms/token, fastest | {_fastest(plain):.2f} | {_fastest(drawn):.2f} |")
    print(f"| frames per second | | {median(a.frames_per_s for a in drawn):.1f} |")
    print(f"| drawing thread, share of the time | | {100 * median(a.drawing_share for a in drawn):.2f} % |")
    print(f"\nlive screen over plain lines, {len(ratios)} pairs: median {median(ratios):.4f}, "
          f"from {min(ratios):.4f} to {max(ratios):.4f}")  # fmt: skip


def _answered(events: Iterator[object], fd: int) -> Answered:
    """Show an answer on `fd` as the command does, and time it."""
    from magicpig_cli.engine.events import Finished, Token
    from magicpig_cli.views.base import Ending
    from magicpig_cli.views.choose import open_view
    from magicpig_cli.views.live import Live
    from magicpig_cli.views.streams import Messages, Output, Stream

    stream = Stream(fd, "utf-8")
    view = open_view(Output(stream), Messages(stream), False, False)
    live = view.progress if isinstance(view.progress, Live) else None
    n_tokens, began, ended = 0, 0.0, 0.0
    before = (0, 0.0)
    for event in events:
        if isinstance(event, Token):
            n_tokens += 1
            if n_tokens == 1:
                began, before = perf_counter(), (live.draws, live.draw_s) if live else (0, 0.0)
        elif isinstance(event, Finished):
            ended = perf_counter()
        view.show(event)  # type: ignore[arg-type]
    draws, draw_s = (live.draws - before[0], live.draw_s - before[1]) if live else (0, 0.0)
    view.finish(Ending(0))
    took = ended - began
    return Answered(1e3 * took / (n_tokens - 1), draws / took, draw_s / took)


@contextmanager
def _terminal(columns: int, rows: int) -> Iterator[int]:
    """A pseudo-terminal whose output another process reads."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    reader = subprocess.Popen([sys.executable, "-c", _READER], stdin=master)
    try:
        yield slave
    finally:
        reader.kill()
        reader.wait()
        os.close(master)
        os.close(slave)


def _median(answers: list[Answered]) -> float:
    return median(a.ms_per_token for a in answers)


def _fastest(answers: list[Answered]) -> float:
    return min(a.ms_per_token for a in answers)


if __name__ == "__main__":
    main()
