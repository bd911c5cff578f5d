"""The tokenizer that a GGUF file describes, as the files that transformers reads.

Byte-level vocabularies are built here, with the rule by which each family splits text before
merging; sentencepiece vocabularies are left to transformers' own converter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from magicpig_cli.errors import ModelUnavailable
from magicpig_cli.models.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_AND_SPACE = r"[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = f"{_CONTRACTIONS}|{_WORDS_AND_SPACE.replace('DIGITS', chr(92) + 'p{N}{1,3}')}"
_QWEN2 = f"{_CONTRACTIONS}|{_WORDS_AND_SPACE.replace('DIGITS', chr(92) + 'p{N}')}"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3, "falcon3": _LLAMA3, "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2, "megrez": _QWEN2, "tekken": _TEKKEN,
}  # fmt: skip
_GPT2_STYLE = {"gpt-2", "default", "smollm"}
# Vocabularies in which a word that is a token stays one, whatever the merges say.
_WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "tekken"}


def save_tokenizer(file: GgufFile, folder: Path, context_tokens: int) -> None:
    """Write tokenizer.json and tokenizer_config.json.

    Raises
    ------
    ModelUnavailable
        If the file's rule of splitting text is unknown.
    """
    model = file.metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer = _byte_level(file)
        tokenizer.save(str(folder / "tokenizer.json"))
        settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **_special_names(file)}
    elif model == "llama":
        settings = _converted(file, folder)
    else:
        raise ModelUnavailable(
            f"{file.path} has a tokenizer of kind {model!r}, which cannot be read yet; "
            "take the model as a folder of safetensors instead"
        )
    settings |= {
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
        "chat_template": file.metadata.get("tokenizer.chat_template"),
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps({name: value for name, value in settings.items() if value is not None}, indent=2),
        encoding="utf-8",
    )


def _byte_level(file: GgufFile) -> Tokenizer:
    metadata = file.metadata
    rule = metadata.get("tokenizer.ggml.pre", "default")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=rule in _WHOLE_WORDS))
    except Exception as error:  # the library has no class of its own
        raise ValueError(f"vocabulary and merges do not agree: {error}") from error
    tokenizer.pre_tokenizer = _pre_tokenizer(file.path, rule)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    added = [
        AddedToken(token, normalized=False, special=kind == _CONTROL)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    tokenizer.post_processor = _post_processor(metadata)
    return tokenizer


def _pre_tokenizer(path: Path, rule: str) -> Any:
    if rule in _GPT2_STYLE:
        by_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if rule != "smollm":
            return by_words
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_words])
    if rule not in _SPLITS:
        raise ModelUnavailable(
            f"{path} splits text by the rule {rule!r}, which is unknown here, so it would read wrongly; "
            "take the model as a folder of safetensors instead"
        )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLITS[rule]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _post_processor(metadata: dict[str, Any]) -> Any:
    start = metadata.get("tokenizer.ggml.bos_token_id")
    if not metadata.get("tokenizer.ggml.add_bos_token") or start is None:
        return processors.ByteLevel(trim_offsets=False)
    token = metadata["tokenizer.ggml.tokens"][start]
    return processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", token, "$B"], special_tokens=[(token, start)]
    )


def _special_names(file: GgufFile) -> dict[str, str | None]:
    tokens = file.metadata["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return {name: tokens[id_] if id_ is not None else None for name, id_ in ids.items()}


def _converted(file: GgufFile, folder: Path) -> dict[str, Any]:
    """Sentencepiece, through transformers; returns the settings that it wrote."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        str(file.path.parent), gguf_file=file.path.name, local_files_only=True, trust_remote_code=False
    )
    tokenizer.save_pretrained(folder)
    written: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    return {key: value for key, value in written.items() if key not in ("is_local", "local_files_only")}
