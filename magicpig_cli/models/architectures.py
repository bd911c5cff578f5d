"""Which architectures the attention seam can carry, told from config.json before any weight is read.

A model must be a causal decoder whose layers all attend with keys and values of one width per
head. What is not is refused here with its name, instead of failing somewhere inside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magicpig_cli.errors import DamagedFile, UsageError

_ADVICE = "choose a decoder such as Llama, Mistral, Qwen or Gemma (`magicpig models ls`)"
_ATTENDING = frozenset({"full_attention", "sliding_attention"})
# Their decoder layers keep keywords to themselves instead of handing them on to attention.
_DEAF = frozenset({"nemotron"})


def read_config(folder: Path) -> Any:
    """The transformers config of a folder.

    Raises
    ------
    UsageError
        If the installed transformers does not know the architecture.
    DamagedFile
        If config.json contradicts itself.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    faults = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, StrictDataclassError)
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except faults as error:
        reason = " ".join(str(error).split())
        if "does not recognize this architecture" in reason or "Unrecognized model" in reason:
            raise UsageError(
                f"the model {folder} is of an architecture that the installed transformers does not know; "
                f"{_ADVICE}, or install a newer transformers"
            ) from error
        if "trust_remote_code" in reason:
            raise UsageError(
                f"the model {folder} needs program code that comes with it, which is never run; {_ADVICE}"
            ) from error
        raise DamagedFile(
            f"{folder / 'config.json'} cannot be used: {reason[:200]}; fetch the model again"
        ) from error


def check_architecture(config: Any, name: str) -> None:
    """Refuse a model that the seam cannot carry.

    Parameters
    ----------
    config : transformers config
    name : str
        What to call the model.

    Raises
    ------
    UsageError
        Naming the architecture and why.
    """
    reason = _objection(config, config.get_text_config(decoder=True))
    if reason is not None:
        declared = getattr(config, "architectures", None) or [config.model_type]
        raise UsageError(f"{name} is of the architecture {declared[0]}, which {reason}; {_ADVICE}")


def _is_causal(config: Any) -> bool:
    """Whether the model says so itself; encoders such as BERT are in transformers' list as well."""
    named = getattr(config, "architectures", None)
    return not named or named[0].endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))


def _objection(config: Any, text: Any) -> str | None:
    from transformers import AutoModelForCausalLM

    if getattr(config, "is_encoder_decoder", False):
        return "encodes and decodes in two stacks, and only decoders are supported"
    if type(config) not in AutoModelForCausalLM._model_mapping or not _is_causal(config):
        return "is no causal language model"
    kinds = set(getattr(text, "layer_types", None) or ()) - _ATTENDING
    if kinds:
        return f"has layers of the kind {sorted(kinds)[0]}, and only layers of full or sliding attention work"
    if getattr(text, "kv_lora_rank", None):
        return "compresses keys and values (multi-head latent attention), which is not supported"
    needed = ("num_attention_heads", "num_hidden_layers", "hidden_size", "max_position_embeddings")
    if any(not isinstance(getattr(text, field, None), int) for field in needed):
        return "has no layers of attention in the usual form"
    if getattr(text, "num_kv_shared_layers", 0):
        return "shares keys and values between layers, which is not supported"
    kind = AutoModelForCausalLM._model_mapping[type(config)]
    kinds_of_model = kind if isinstance(kind, tuple | list) else (kind,)
    replaceable = all(getattr(each, "_supports_attention_backend", False) for each in kinds_of_model)
    if not replaceable or text.model_type in _DEAF:
        return "does not let its attention be replaced"
    return None
