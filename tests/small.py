"""A small random chat model as a real folder, one token per byte: loads in a moment, answers nonsense."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def small_model(
    folder: Path, kind: str = "llama", seed: int = 0, endless: bool = False, **changes: Any
) -> Path:
    """Write the model's folder and give it back.

    Parameters
    ----------
    folder : Path
    kind : str
        Of configuration, as transformers names it.
    seed : int
        Of the weights.
    endless : bool
        No token ends an answer. Otherwise one of some 260 does, whenever it is drawn.
    changes
        To the configuration.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *letters])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=None if endless else "<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHATML,
    )
    shape: dict[str, Any] = {
        "vocab_size": len(vocabulary), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 8192,
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": None if endless else 2,
        "pad_token_id": 0, "initializer_range": 0.3,
    }  # fmt: skip
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**shape, **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def lines(n: int, start: int = 0) -> str:
    """A text of `n` lines, about 52 bytes each."""
    return "".join(
        f"Line {i} of the log: pump {i * 7 % 13} ran for {i * 31 % 60} minutes.\n"
        for i in range(start, start + n)
    )


def read_and_keep(
    model: str, cache: str, text: str, told: Any, checkpoint_s: float = 10.0, hold_after: int | None = None
) -> None:
    """In a process of its own: load, read, keep.

    Through the connection `told` it says "loaded", then the text of each notice and the number of chunks of
    layers that are done, and at the end the tokens that were computed, in a tuple. After `hold_after` of
    these chunks it goes on only when it is told something itself.
    """
    os.environ["MAGICPIG_CACHE"] = cache
    from magicpig_cli.documents import Document
    from magicpig_cli.engine import keeping
    from magicpig_cli.engine.engine import Engine, EngineSettings
    from magicpig_cli.engine.events import Notice, Prefilled, PrefillProgress

    keeping._CHECKPOINT_S = checkpoint_s
    keeping._CHECKPOINT_SHARE = 1e9
    engine = Engine.load(
        EngineSettings(model=model, cache=True, chunk_tokens=256, offline=True, device="cpu")
    )
    told.send("loaded")
    n_done = 0
    computed: tuple[int, ...] = ()
    for event in engine.read([Document("book.txt", text, "utf-8")]):
        if isinstance(event, PrefillProgress):
            n_done += 1
            told.send(n_done)
            if n_done == hold_after:
                told.recv()
        elif isinstance(event, Notice):
            told.send(event.text)
        elif isinstance(event, Prefilled):
            computed = (event.computed_tokens,)
    told.send(computed)
