"""In how few bits weights may be stored, and when `--quantize` may not do it; imports nothing heavy."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from magicpig_cli.errors import UsageError

QUANTIZATIONS = ("none", "int8", "int4")

# GGUF's number formats that matrices can stay in, by GGML's name: weights and bytes of a block.
GGUF_BLOCKS = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
# What `quantization_config` calls that in the config of a folder made of such a file, and where it has the
# formats by layer.
GGUF_METHOD, GGUF_FORMATS = "magicpig-gguf", "formats"


def check_quantization(quantization: str) -> None:
    """Refuse a name that means nothing, and any for which the library is missing.

    Raises
    ------
    UsageError
    """
    if quantization not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise UsageError(f"there is no quantisation {quantization!r}; choose one of {known}")
    if quantization != "none" and find_spec("bitsandbytes") is None:
        install = "pip install 'magicpig-cli[quantize]'"
        raise UsageError(f"--quantize {quantization} needs bitsandbytes: {install}")


def stored_quantization(config: Any) -> dict[str, Any] | None:
    """What a transformers config says of weights that are quantised already; None if they are not."""
    stored = getattr(config, "quantization_config", None)
    return stored if stored is None or isinstance(stored, dict) else vars(stored)


def packed_formats(config: Any) -> dict[str, str]:
    """Formats of the layers that stay in the blocks of a .gguf file, by name of their module.

    Parameters
    ----------
    config : transformers config
        Of a model's folder; of any that was not made of such a file, none do.
    """
    stored = stored_quantization(config)
    return dict(stored[GGUF_FORMATS]) if stored and stored.get("quant_method") == GGUF_METHOD else {}


def refuse_gguf(name: str, quantization: str) -> None:
    """Refuse to quantise a .gguf file, whose weights are quantised already.

    Parameters
    ----------
    name : str
        As `--model` gives it.
    quantization : str

    Raises
    ------
    UsageError
    """
    if quantization == "none":
        return
    path = Path(name).expanduser()
    if path.is_dir() and not (path / "config.json").exists():
        path = next(iter(sorted(path.glob("*.gguf"))), path)
    if path.suffix.lower() == ".gguf" or _is_gguf(path):
        raise UsageError(
            f"{name} is a GGUF file, whose weights are as its maker quantised them; leave out --quantize, or "
            "name the model's folder of safetensors"
        )


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except (OSError, ValueError):  # no file, or a name that no file can have
        return False
