"""In how many bits `--quantize` may store weights, and when it may not; imports nothing heavy."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from magicpig_cli.errors import UsageError

QUANTIZATIONS = ("none", "int8", "int4")


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
