"""A request as the engine tells it: the events of one short run, with figures of a real one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from magicpig_cli.engine import events as e

MODEL = e.ModelInfo(
    "SmolLM2-135M-Instruct", "LlamaForCausalLM", 134_515_008, "bfloat16", "none", 8192, 269_030_016
)
CPU = e.DeviceInfo("x86_64", "cpu", 8_200_000_000, 2)
GPU = e.DeviceInfo("NVIDIA GeForce RTX 4070", "cuda", 12_878_000_000, 8)
DOCUMENT = e.DocumentInfo("book.txt", "utf-8", 28_113, 6012)
LSH = e.AttentionInfo("lsh", 8, 75, 2, (0, 16))


def loading(device: e.DeviceInfo = CPU) -> list[e.Event]:
    return [e.LoadProgress("loading", 0, None), e.Loaded(MODEL, device, 1.94)]


def prefilling(n_layers: int = 30, n_chunks: int = 4) -> Iterator[e.Event]:
    yield e.Prompted((DOCUMENT,), 6012, 6041, 0, LSH)
    total = n_layers * n_chunks * (n_chunks + 1) / 2
    done = 0
    for layer in range(n_layers):
        for chunk in range(n_chunks):
            done += chunk + 1
            fraction = done / total
            yield e.PrefillProgress(layer, n_layers, (chunk + 1) * 1511, 6041, fraction, 8.4 * fraction)
    yield e.Prefilled(6041, 6041, 8.4, 1.1, 139_200_000, 92_400_000)
    yield memory()


def memory(device: e.DeviceInfo = CPU) -> e.Memory:
    gpu = device.kind == "cuda"
    return e.Memory(
        host_bytes=1_180_000_000,
        host_peak_bytes=1_310_000_000,
        host_total_bytes=8_200_000_000,
        device_bytes=5_020_000_000 if gpu else None,
        device_peak_bytes=6_100_000_000 if gpu else None,
        device_total_bytes=device.total_bytes if gpu else None,
        weight_bytes=MODEL.weight_bytes,
        kv_bytes=139_200_000,
        table_bytes=92_400_000,
        device_kv_bytes=305_000_000 if gpu else 0,
    )


def decoding(
    pieces: Sequence[str], tail: str = "", reason: e.FinishReason = "stop", seed: int | None = None
) -> Iterator[e.Event]:
    for i, piece in enumerate(pieces):
        yield e.Token(i, 1000 + i, piece)
        yield e.Step(i + 1, 16.0 + 3 * (i % 5), 6.2, 1.1, 5.1, 0.064, 0.021)
    yield e.Finished(reason, tail, len(pieces), 8.6, 22.0, 6.2, 0.064, 0.021, seed)


def request(pieces: Sequence[str], tail: str = "") -> Iterator[e.Event]:
    """All of it."""
    yield from loading()
    yield from prefilling()
    yield from decoding(pieces, tail)
    yield memory()
