"""`--json`: one object on standard output at the end, whatever the end was (ask.schema.json)."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

from magicpig_cli import __version__
from magicpig_cli.views.base import Ending
from magicpig_cli.views.streams import Output
from magicpig_cli.views.track import Track

# Left bare by JSON but dangerous or impossible outside: DEL, C1 controls, lone surrogates.
_UNSAFE = re.compile("[\x7f-\x9f\ud800-\udfff]")


class JsonAnswer:
    """Writes the object when everything is known."""

    writes_at_once = False

    def __init__(self, output: Output) -> None:
        self._output = output

    def show(self, piece: str) -> None:
        pass

    def finish(self, track: Track, ending: Ending) -> None:
        self._output.write(encode(result(track, ending), self._output.stream.encoding) + "\n")


def encode(value: dict[str, Any], encoding: str = "utf-8") -> str:
    """JSON on one line. Strict: a number that is not finite becomes null."""
    text = json.dumps(_finite(value), ensure_ascii=encoding != "utf-8", allow_nan=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def result(track: Track, ending: Ending) -> dict[str, Any]:
    """The object of `ask --json`; what is not known (yet) is null."""
    finished, prompted, prefilled, memory = track.finished, track.prompted, track.prefilled, track.memory
    reason = finished.reason if finished else "interrupted" if ending.interrupted else None
    value: dict[str, Any] = {
        "answer": track.answer if track.generated_tokens or finished else None,
        "reasoning": track.reasoning or None,
        "finish_reason": None if ending.failure else reason,
        "version": __version__,
        "model": _model(track),
        "device": _device(track),
        "documents": [dataclasses.asdict(document) for document in track.documents],
        "tokens": {
            "prompt": prompted.prompt_tokens if prompted else None,
            "document": prompted.document_tokens if prompted else None,
            "generated": track.generated_tokens,
        },
        "attention": _attention(track),
        "seed": finished.seed if finished else None,
        "timings": {
            "load_s": track.loaded.load_s if track.loaded else None,
            "read_s": track.read_s,
            "prefill_s": prefilled.prefill_s if prefilled else None,
            "prefill_tokens_per_s": prefilled.tokens_per_s if prefilled else None,
            "first_token_s": finished.first_token_s if finished else None,
            "decode_ms_per_token": track.step_ms,
            "cpu_attention_ms_per_token": track.attention_ms,
        },
        "memory": {
            "device_peak_bytes": memory.device_peak_bytes if memory else None,
            "host_peak_bytes": memory.host_peak_bytes if memory else None,
            "kv_bytes": prefilled.kv_bytes if prefilled else None,
            "table_bytes": memory.table_bytes if memory else None,
        },
        "cache": {
            "hit": bool(prompted and prompted.reused_tokens),
            "tokens_reused": prompted.reused_tokens if prompted else 0,
            "path": track.index_path,
        },
        "citations": None if track.cited is None else [dataclasses.asdict(p) for p in track.cited.passages],
        "notices": list(track.notices),
    }
    if ending.failure:
        value["error"] = {"kind": ending.failure.kind, "message": ending.failure.sentence}
    return value


def _model(track: Track) -> dict[str, Any] | None:
    if track.loaded is None:
        return None
    model = track.loaded.model
    return {
        "id": model.id,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "dtype": model.dtype,
        "quantization": model.quantization,
        "context_tokens": model.context_tokens,
    }


def _device(track: Track) -> dict[str, Any] | None:
    return {"name": track.loaded.device.name, "kind": track.loaded.device.kind} if track.loaded else None


def _attention(track: Track) -> dict[str, Any] | None:
    if track.prompted is None:
        return None
    info = track.prompted.attention
    return {
        "method": info.method,
        "n_bits": info.n_bits,
        "n_tables": info.n_tables,
        "min_collisions": info.min_collisions,
        "dense_layers": list(info.dense_layers),
        "sampled_share": track.sampled_share,
        "estimated_error": track.estimated_error,
        "tolerance": info.tolerance,
        "exact_share": track.exact_share,
        "resampled_share": track.resampled_share,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
