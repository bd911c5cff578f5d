"""From a folder of safetensors to a model that computes: dtype or fewer bits, device, our attention."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch

from magicpig_cli.attention.hook import ATTENTION_NAME, register_attention
from magicpig_cli.errors import DamagedFile, UsageError, is_out_of_memory, tells_of_no_memory
from magicpig_cli.models.architectures import read_config
from magicpig_cli.models.bits import check_quantization, packed_formats
from magicpig_cli.models.gguf_packed import register_packed_gguf
from magicpig_cli.models.heap import returned_when_freed
from magicpig_cli.models.linear import pack_linears
from magicpig_cli.models.machine import room
from magicpig_cli.models.plan import PlanOptions, require_weights
from magicpig_cli.models.profiles import context_tokens
from magicpig_cli.models.quantize import (
    check_quantizable,
    leave_file,
    loading_options,
    n_weights,
    pack_quantized,
    unpacking_options,
)
from magicpig_cli.models.rotation import settle_rotation, stretch_rotation, stretched
from magicpig_cli.models.shape import ModelShape
from magicpig_cli.models.survey import shape_of_model_folder

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for the engine.

    Attributes
    ----------
    model : torch.nn.Module
        A transformers causal language model in evaluation mode.
    tokenizer : transformers tokenizer
    weight_dtype : str
        How weights are kept; on a CPU activations are float32 whatever this is.
    context_tokens : int
        The longest prompt and answer that its positions were trained for.
    stop_ids : frozenset of int
        Every token that ends an answer.
    shape : ModelShape or None
        What memory plans are made from; None for a model that did not come from files.
    quantization : str
        Of the layers' matrices: a name of `bits.QUANTIZATIONS`, or gguf where they stay in the blocks of a
        .gguf file.
    """

    model: Any
    tokenizer: Any
    weight_dtype: str
    context_tokens: int
    stop_ids: frozenset[int]
    shape: ModelShape | None = None
    quantization: str = "none"

    @property
    def architecture(self) -> str:
        return type(self.model).__name__

    @property
    def n_parameters(self) -> int:
        # Each once: an output head may be the embedding itself.
        numbers = {
            parameter.data_ptr(): n_weights(module, parameter)
            for module in self.model.modules()
            for parameter in module.parameters(recurse=False)
        }
        return sum(numbers.values())

    @property
    def weight_bytes(self) -> int:
        distinct = {tensor.data_ptr(): tensor for tensor in self.model.state_dict().values()}
        return sum(tensor.numel() * tensor.element_size() for tensor in distinct.values())


def choose_device(name: str) -> torch.device:
    """`auto` takes the GPU where there is one.

    Raises
    ------
    UsageError
        If a GPU is asked for and there is none of that number.
    """
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"there is no device {name!r}; use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        found = torch.cuda.device_count()
        index = device.index or 0
        if index >= found:
            raise UsageError(
                f"device {name} was asked for, but torch sees {found} CUDA GPUs; use `--device cpu`"
            )
        return torch.device("cuda", index)
    if device.type != "cpu":
        raise UsageError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    return device


def load_model(
    folder: Path,
    device: torch.device,
    dtype: str = "auto",
    model_id: str | None = None,
    quantization: str = "none",
    stretch: float | None = None,
) -> LoadedModel:
    """Load a transformers folder.

    Parameters
    ----------
    folder : Path
        config.json, safetensors and tokenizer files.
    device : torch.device
    dtype : str
        auto (bfloat16), bfloat16, float16 or float32: how weights are kept.
    model_id : str, optional
        What refusals call the model; its folder by default.
    quantization : str
        none, int8 or int4: bits of the layers' matrices, made while they are read.
    stretch : float, optional
        Stretch the positions by yarn to this many times the trained context, above 1.

    Raises
    ------
    UsageError
        If the dtype is unknown, the architecture not supported, or the model cannot be quantised or
        stretched as asked.
    DoesNotFit
        If its weights are larger than the memory; nothing was read then.
    DamagedFile
        If transformers cannot read what is there.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    register_attention()
    name = "bfloat16" if dtype == "auto" else dtype
    if name not in _DTYPES:
        raise UsageError(f"there is no dtype {dtype!r}; use auto, {', '.join(_DTYPES)}")
    check_quantization(quantization)
    model_id = model_id or str(folder)
    shape = stretched(shape_of_model_folder(folder, model_id), stretch)
    config = read_config(folder)
    is_packed = bool(packed_formats(config))
    if is_packed:
        register_packed_gguf()
    if quantization != "none":
        check_quantizable(config, model_id)
    on_gpu = device.type == "cuda"
    wishes = PlanOptions(device.type, name, quantization=quantization)
    require_weights(shape, wishes, room(device.index if on_gpu else None))
    if stretch is not None:
        stretch_rotation(config, stretch)
    common = {"local_files_only": True, "trust_remote_code": False}
    # Straight to the GPU, file by file, so that the host never holds them all.
    placed = {"device_map": {"": device}} if on_gpu else {}
    placed |= loading_options(quantization, _DTYPES[name], device)
    placed |= unpacking_options(config)
    with returned_when_freed():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, **common)
            model = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=_DTYPES[name],
                attn_implementation=ATTENTION_NAME,
                **placed,
                **common,
            )
        except ImportError as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"{model_id} needs a library that is not installed: {reason[:200]}") from error
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            cause = _hidden_cause(error) or str(error).strip() or type(error).__name__
            if tells_of_no_memory(cause):
                raise MemoryError(cause) from error
            reason = cause.splitlines()[0]
            raise DamagedFile(f"{folder} cannot be loaded as a model: {reason}") from error
        model.eval().requires_grad_(False)
        settle_rotation(model)
        if not on_gpu:
            pack_quantized(model, model_id)
            if quantization != "none":
                leave_file(model)
            pack_linears(model)
    return LoadedModel(
        model,
        tokenizer,
        name,
        context_tokens(model.config.get_text_config(decoder=True)),
        _stops(model, tokenizer),
        shape,
        "gguf" if is_packed else quantization,
    )


def _hidden_cause(error: Exception) -> str | None:
    """What went wrong with the first weight that transformers could not convert; None if that was not it.

    It collects such errors, goes on, and in the end says only that there were some. They are in a local
    variable of the function that raises, as tracebacks that end with the errors' own lines.
    """
    for frame, _ in walk_tb(error.__traceback__):
        found = getattr(frame.f_locals.get("loading_info"), "conversion_errors", None)
        if isinstance(found, dict) and found:
            lines = [line for line in str(next(iter(found.values()))).splitlines() if line.strip()]
            # The line after the last that belongs to a file's place is the error's.
            places = [i for i, line in enumerate(lines) if line.startswith("  ")]
            return lines[min(places[-1] + 1, len(lines) - 1)] if places else lines[0]
    return None


def _stops(model: Any, tokenizer: Any) -> frozenset[int]:
    """All end tokens of the generation config, the model config and the tokenizer."""
    stops: set[int] = set()
    for declared in (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        tokenizer.eos_token_id,
    ):
        if declared is not None:
            stops.update([declared] if isinstance(declared, int) else declared)
    return frozenset(stops)
