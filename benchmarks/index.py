"""What an index saves: a document read, then found again, with the parts of the time to the first token.

python benchmarks/index.py [--model MODEL] [--repeat N] FILE QUESTION

Prints the time to the first token without and with an index, how long opening it takes, and of that the
part that building the hash tables takes, beside the sizes of keys, values and tables on the disk.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import zlib
from pathlib import Path
from statistics import median
from time import perf_counter

os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("file", type=Path)
    parser.add_argument("question")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        model = _folder(arguments.model)
        os.environ["MAGICPIG_CACHE"] = cache
        _measure(model, arguments)


def _folder(name: str) -> str:
    from magicpig_cli.models.sources import resolve

    source = resolve(
        name, offline=False, device_kind="cpu", progress=lambda *step: None, notice=lambda text: None
    )
    return str(source.folder)


def _measure(model: str, arguments: argparse.Namespace) -> None:
    from magicpig_cli.documents import read_sources
    from magicpig_cli.engine.engine import AskRequest, Engine, EngineSettings
    from magicpig_cli.engine.events import Finished, Indexed, Prefilled, Prompted, Token

    request = AskRequest(read_sources([str(arguments.file)], None), arguments.question, max_tokens=16)
    # Kernels are compiled or fetched before anything is timed.
    warm = Engine.load(EngineSettings(model=model))
    for _ in warm.generate(AskRequest(request.documents, arguments.question, max_tokens=2)):
        pass
    answers, first_s, open_s, tables_s = [], [], [], []
    for _ in range(1 + arguments.repeat):
        engine = Engine.load(EngineSettings(model=model, cache=True))
        events = list(engine.generate(request))
        prompted = next(event for event in events if isinstance(event, Prompted))
        prefilled = next(event for event in events if isinstance(event, Prefilled))
        finished = next(event for event in events if isinstance(event, Finished))
        answers.append([event.id for event in events if isinstance(event, Token)])
        first_s.append(finished.first_token_s or 0.0)
        open_s.append(prompted.open_s)
        tables_s.append(prefilled.table_build_s)
        for event in events:
            if isinstance(event, Indexed):
                print(f"kept {event.tokens:,} tokens, {event.n_bytes / 1e6:.0f} MB")
        engine.close()
    print(f"same answer every time: {all(answer == answers[0] for answer in answers)}")
    print(
        f"first token when read anew {first_s[0]:.2f} s, from the index {median(first_s[1:]):.2f} s", end=""
    )
    print(f" ({first_s[0] / median(first_s[1:]):.1f} times sooner)")
    print(f"opening {median(open_s[1:]):.2f} s, of which building tables {median(tables_s[1:]):.2f} s")
    print(f"tables take {prefilled.table_bytes / 1e6:.0f} MB of memory", end="; ")
    rate = _checksum_bytes_per_s()
    print(f"reading them from the disk would cost {prefilled.table_bytes / rate:.2f} s of checksums alone")


def _checksum_bytes_per_s() -> float:
    data = os.urandom(1 << 26)
    started = perf_counter()
    zlib.crc32(data)
    return len(data) / (perf_counter() - started)


if __name__ == "__main__":
    main()
