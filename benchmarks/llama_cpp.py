"""llama.cpp on a GGUF file, for given contexts and threads: ms/token and prefill speed, as JSON lines.

Run it with a Python that has the package `xllamacpp` (a prebuilt llama.cpp), in an environment of
its own; it needs nothing of magicpig. Reading 96,000 tokens takes llama.cpp an hour on two cores, so it
reads some, and the saved sequence is made longer (`llama_state.py`) and restored; `--read-all` reads every
context for real instead. `beside_llama_cpp.py` runs it with `--serve` and takes turns with it.

    python benchmarks/llama_cpp.py MODEL.gguf --ctx 2000,8000,32000,96000 --threads 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import urllib.request
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import xllamacpp
from llama_state import raise_context, read_sequence, write_extended

# Tokens beyond the context for which a server has room; a turn may not be longer.
ROOM = 256


class Server:
    """A llama.cpp server in this process: f16 keys and values, flash attention, one slot, nothing cached."""

    def __init__(self, gguf: Path, ctx: int, threads: int, folder: Path) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(gguf)
        params.n_ctx = ctx + ROOM
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.slot_save_path = f"{folder}/"
        params.cache_ram_mib = params.n_ctx_checkpoints = 0
        params.fit_params = False
        params.verbosity = 0
        self._server = xllamacpp.Server(params)
        # A proxy that the environment names is not for this machine's own address.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """The answer to one request.

        Raises
        ------
        urllib.error.HTTPError
            If the server refuses it.
        """
        request = urllib.request.Request(
            self._server.listening_address + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with self._opener.open(request) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def complete(self, tokens: list[int], n_predict: int, keep: bool) -> dict[str, float]:
        """Continue `tokens` greedily and give llama.cpp's own timings.

        Parameters
        ----------
        tokens : list of int
        n_predict : int
            The first comes with the prompt, so one less is timed as decoding.
        keep : bool
            Whether what the slot holds of the prompt already is used.
        """
        answer = self.post(
            "/completion",
            prompt=tokens,
            n_predict=n_predict,
            temperature=0,
            ignore_eos=True,
            cache_prompt=keep,
        )
        timings: dict[str, float] = answer["timings"]
        return timings


class LlamaCpp:
    """llama.cpp as a contender; the verbs of `--serve`.

    Parameters
    ----------
    gguf : Path
    threads : int
    folder : Path
        For files of its own: the model's copy, and 23 KB per token of the embedded model.
    real_tokens : int
        To read for real, before the context grows.
    read_all : bool
        Read every context for real.
    """

    def __init__(
        self, gguf: Path, threads: int, folder: Path, real_tokens: int, read_all: bool = False
    ) -> None:
        self._gguf = folder / "model.gguf"
        raise_context(gguf, self._gguf)
        self._threads, self._folder, self._read_all = threads, folder, read_all
        self._saved = folder / "read.bin"
        self._start(real_tokens)

    def _start(self, ctx: int) -> None:
        self._server = Server(self._gguf, ctx, self._threads, self._folder)
        self._ctx = ctx
        self._tokens = self._text(ctx) if self._read_all or not self._saved.exists() else []

    def about(self) -> dict[str, str]:
        """What is measured."""
        return {"xllamacpp": xllamacpp.__version__}

    def prefill(self) -> dict[str, float]:
        """Read the context of now anew, and save it: `tokens`, `tokens_per_s`."""
        timings = self._server.complete(self._tokens, 1, keep=False)
        self._server.post("/slots/0?action=save", filename=self._saved.name)
        return {"tokens": timings["prompt_n"], "tokens_per_s": timings["prompt_per_second"]}

    def fill(self, ctx: int) -> dict[str, float]:
        """Start a server of that context, and restore or read its tokens: `ctx`, `read_tokens`.

        Raises
        ------
        SystemExit
            If llama.cpp did not take the sequence.
        """
        read = 0.0
        if not self._read_all and not self._saved.exists():
            read = self.prefill()["tokens"]
        del self._server  # one at a time: its memory, its threads
        self._start(ctx)
        if self._read_all:
            read = self.prefill()["tokens"]
        else:
            extended = self._folder / "extended.bin"
            self._tokens = write_extended(read_sequence(self._saved), ctx, extended)
            restored = self._server.post("/slots/0?action=restore", filename=extended.name)
            extended.unlink()
            if restored.get("n_restored") != ctx:
                raise SystemExit(f"llama.cpp restored {restored} where {ctx:,} tokens were written")
        self.decode(2)
        return {"ctx": ctx, "read_tokens": read}

    def decode(self, tokens: int) -> dict[str, float]:
        """Generate `tokens` behind the context: `ms_per_token`, and `ctx` that they attended to.

        Raises
        ------
        SystemExit
            If llama.cpp read the context again instead of continuing it.
        """
        timings = self._server.complete(self._tokens, tokens + 1, keep=True)
        if timings["prompt_n"] > 2 or timings["prompt_n"] + timings["cache_n"] != self._ctx:
            raise SystemExit(f"llama.cpp did not continue the {self._ctx:,} tokens that it holds: {timings}")
        return {"ctx": self._ctx, "ms_per_token": timings["predicted_ms"] / tokens}

    def _text(self, n_tokens: int) -> list[int]:
        """That many tokens of Python's language reference, which `magicpig bench` reads too."""
        text = "\n\n".join(str(topics[name]) for name in sorted(topics))
        characters = 8 * n_tokens
        text = (text * -(-characters // len(text)))[:characters]
        tokens: list[int] = self._server.post("/tokenize", content=text)["tokens"]
        return tokens[:n_tokens]


def serve(contender: LlamaCpp) -> None:
    """Answer one JSON line, such as {"do": "decode", "tokens": 8}, by one; ends with standard input."""
    for line in sys.stdin:
        request = json.loads(line)
        verb = getattr(contender, request.pop("do"))
        print(json.dumps(verb(**request)), flush=True)


def main() -> None:
    """Measure and print, or serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--ctx", default="2000,8000", help="contexts in tokens, comma-separated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=8, help="tokens of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--real-tokens", type=int, default=2048, help="to read before the context grows")
    parser.add_argument("--read-all", action="store_true", help="read every context for real")
    parser.add_argument("--serve", action="store_true", help="answer requests on standard input")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llama-cpp-") as folder:
        contender = LlamaCpp(
            options.gguf, options.threads, Path(folder), options.real_tokens, options.read_all
        )
        if options.serve:
            serve(contender)
            return
        for ctx in (int(part) for part in options.ctx.split(",")):
            filled = contender.fill(ctx)
            times = [contender.decode(options.tokens)["ms_per_token"] for _ in range(options.rounds)]
            figures = {
                "ms_per_token": statistics.median(times),
                "ms_per_token_min": min(times),
                "ms_per_token_max": max(times),
            }
            print(json.dumps(filled | figures), flush=True)


if __name__ == "__main__":
    main()
