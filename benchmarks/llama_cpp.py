"""llama.cpp on the same GGUF file, context and threads: ms/token and prefill speed, as JSON lines.

Run it with a Python that has the package `xllamacpp` (a prebuilt llama.cpp), in an environment of
its own; it needs nothing of magicpig. `benchmarks/beside_llama_cpp.py` calls it in turns with magicpig.

    python benchmarks/llama_cpp.py MODEL.gguf --ctx 2000,8000 --threads 2
"""

from __future__ import annotations

import argparse
import json
from pydoc_data.topics import topics

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf")
    parser.add_argument("--ctx", default="2000,8000", help="contexts in tokens, comma-separated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=24, help="tokens to generate")
    options = parser.parse_args()
    for ctx in (int(part) for part in options.ctx.split(",")):
        print(json.dumps(measure(options.gguf, ctx, options.threads, options.tokens)), flush=True)


def measure(gguf: str, ctx: int, threads: int, tokens: int) -> dict[str, float]:
    """Read `ctx` tokens of text, generate some, and report llama.cpp's own timings."""
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.n_ctx = ctx + tokens + 64
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    server = xllamacpp.Server(params)
    text = "\n\n".join(str(topics[name]) for name in sorted(topics))
    characters = 4 * ctx
    prompt = (text * (characters // len(text) + 1))[:characters]
    while True:
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        timings = answer["timings"]
        if abs(timings["prompt_n"] - ctx) <= ctx * 0.05:
            break
        prompt = (text * 4)[: int(len(prompt) * ctx / timings["prompt_n"])]
    return {
        "ctx": timings["prompt_n"],
        "ms_per_token": timings["predicted_per_token_ms"],
        "prefill_tokens_per_s": timings["prompt_per_second"],
    }


if __name__ == "__main__":
    main()
