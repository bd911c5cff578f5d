"""A small model as a real folder that answers what it is told to, one given piece a token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from small import CHATML, SPECIAL
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

# The template opens the reasoning, so that the answer holds an end without a beginning.
OPENED = CHATML.removesuffix("{% endif %}") + "<think>\n{% endif %}"
# It only names the tags, as those do that take the thoughts out of earlier turns.
NAMED = "{# </think> #}" + CHATML
# Marks of messages, as gpt-oss has them.
CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")

_WIDTH = 512


def scripted_tokenizer(
    pieces: Sequence[str | bytes],
    template: str = CHATML,
    special: Sequence[str] = (),
    added: Sequence[str] = (),
) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """A tokenizer of one token per byte that also has some pieces, and these pieces' ids.

    Parameters
    ----------
    pieces : sequence of str or bytes
        All different.
    template : str
        Of the chat.
    special, added : sequence of str
        Pieces that are added tokens of the tokenizer, counted as special or not.
    """
    letters = _letters()
    spelled = ["".join(letters[b] for b in (p.encode() if isinstance(p, str) else p)) for p in pieces]
    known = {*letters.values(), *special, *added}
    words = [*SPECIAL, *letters.values(), *(s for s in spelled if s not in known)]
    backend = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([*SPECIAL, *special])
    backend.add_tokens(list(added))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=template
    )
    vocabulary = backend.get_vocab()
    return tokenizer, [vocabulary[s] for s in spelled]


def scripted_model(
    folder: Path, pieces: Sequence[str | bytes], template: str = CHATML, endless: bool = False
) -> Path:
    """Write the model's folder and give it back.

    Its layers add nothing, and its head turns each token into the one after it.

    Parameters
    ----------
    folder : Path
    pieces : sequence of str or bytes
        Of the answer, all different and none a line end alone, which is what the prompt ends in.
    template : str
        Of the chat; ends in a line end.
    endless : bool
        Begin again after the last piece.
    """
    tokenizer, ids = scripted_tokenizer(pieces, template)
    config = AutoConfig.for_model(
        "llama", vocab_size=len(tokenizer), hidden_size=_WIDTH, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=8192,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=2, pad_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    embedding = torch.randn(len(tokenizer), _WIDTH)
    head = torch.zeros_like(embedding)
    line_end = tokenizer.convert_tokens_to_ids(_letters()[ord("\n")])
    for before, after in pairwise([line_end, *ids, ids[0] if endless else tokenizer.eos_token_id]):
        head[after] += embedding[before] / embedding[before].norm()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.copy_(head)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _letters() -> dict[int, str]:
    """How a byte-level vocabulary writes each byte: visible ones as they are, others from 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in visible]
    return {b: chr(b) for b in visible} | {b: chr(256 + n) for n, b in enumerate(others)}
