"""Models with a short name: what they are, how big, how far they read, and who may have them."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

EMBEDDED = "smollm2-135m"
DEFAULT_WITH_GPU = "llama-3.1-8b"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model.

    Attributes
    ----------
    name : str
        The alias that `--model` takes.
    hub_id : str
        On huggingface.co.
    parameters : int
    context_tokens : int
        The longest text it was made for, as its config declares it.
    gated : bool
        Whether its owner asks for an account and consent before a download.
    licence : str
    """

    name: str
    hub_id: str
    parameters: int
    context_tokens: int
    gated: bool
    licence: str

    @property
    def weight_bytes(self) -> int:
        """In bfloat16."""
        return 2 * self.parameters


CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        EMBEDDED, "HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008, 8_192, False, "Apache-2.0"
    ),
    CatalogEntry(
        "llama-3.2-1b", "meta-llama/Llama-3.2-1B-Instruct",
        1_235_814_400, 131_072, True, "Llama 3.2 Community",
    ),
    CatalogEntry(
        "llama-3.2-3b", "meta-llama/Llama-3.2-3B-Instruct",
        3_212_749_824, 131_072, True, "Llama 3.2 Community",
    ),
    CatalogEntry(
        "qwen3-4b", "Qwen/Qwen3-4B-Instruct-2507", 4_022_468_096, 262_144, False, "Apache-2.0"
    ),
    CatalogEntry(
        DEFAULT_WITH_GPU, "meta-llama/Llama-3.1-8B-Instruct",
        8_030_261_248, 131_072, True, "Llama 3.1 Community",
    ),
)  # fmt: skip


def find_entry(name: str) -> CatalogEntry | None:
    """The entry of an alias, in any case."""
    return next((entry for entry in CATALOG if entry.name == name.lower()), None)


def entry_of_hub_id(hub_id: str) -> CatalogEntry | None:
    return next((entry for entry in CATALOG if entry.hub_id.lower() == hub_id.lower()), None)


def near_names(name: str) -> list[str]:
    """Aliases that a misspelt name may have meant, nearest first."""
    return get_close_matches(name.lower(), [entry.name for entry in CATALOG], n=2, cutoff=0.5)
