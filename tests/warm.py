"""Runs `magicpig` in forks of one process that has imported its libraries: the same program, seconds earlier.

What a test means to see of the start itself (locale, closed streams, signals while libraries load, settings
that libraries read when they are imported) must run the real command instead: `command.magicpig`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import IO

from command import Result, environment

# Each request brings the fork's streams; a fork runs the command's own `main` on them and ends as it ends.
_SERVER = """
import gc, importlib, json, os, socket, sys
for name in ("magicpig_cli.cli.app", *sys.argv[2:]):
    importlib.import_module(name)
from magicpig_cli.__main__ import main
gc.freeze()
channel = socket.socket(fileno=int(sys.argv[1]))
while True:
    data, fds, _, _ = socket.recv_fds(channel, 1 << 20, 3)
    if not data:
        break
    request = json.loads(data)
    if "wait" in request:
        status = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        channel.sendall(str(status).encode())
        continue
    child = os.fork()
    if child:
        for fd in fds:
            os.close(fd)
        channel.sendall(str(child).encode())
        continue
    channel.close()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    # As the interpreter opens them at its start.
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["magicpig", *request["arguments"]]
    main()
"""

LIBRARIES = (
    "magicpig_cli.engine.engine",
    "magicpig_cli.engine.conversation",
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.tokenization_auto",
)
# Of a command that ends before it needs any.
NONE: tuple[str, ...] = ()


@cache
def _server(imports: tuple[str, ...]) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    empty = tempfile.TemporaryDirectory(prefix="magicpig-hub-")
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(theirs.fileno()), *imports],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # What `cli.chatter` sets before the first import.
        env=environment(
            TOKENIZERS_PARALLELISM="false",
            TRANSFORMERS_VERBOSITY="error",
            HF_HUB_DISABLE_PROGRESS_BARS="1",
            HF_HUB_DISABLE_TELEMETRY="1",
            # Read when the library is imported: nothing of the hub is on this disk, whoever runs the tests.
            HF_HUB_CACHE=empty.name,
        ),
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait(30)
        empty.cleanup()

    atexit.register(end)
    return ours


class Warm:
    """One command under way, with its streams in pipes.

    Parameters
    ----------
    arguments : str
    stdin : file, optional
        The null device without one.
    stdout : file, optional
        A pipe without one.
    env, cwd
    imports : tuple of str
        What the process that is forked has imported beside the command line: `LIBRARIES` or `NONE`.
    """

    def __init__(
        self,
        *arguments: str,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        imports: tuple[str, ...] = LIBRARIES,
    ) -> None:
        self._server = _server(imports)
        request = {"arguments": arguments, "env": env or environment(), "cwd": str(cwd or Path.cwd())}
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        with open(os.devnull, "rb") as null:
            given = (stdin or null).fileno()
            out = stdout.fileno() if stdout else out_write
            socket.send_fds(self._server, [json.dumps(request).encode()], [given, out, err_write])
            self.pid = int(self._server.recv(100))
        os.close(out_write)
        os.close(err_write)
        self.stdout, self.stderr = os.fdopen(out_read, "rb"), os.fdopen(err_read, "rb")

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def until(self, line_start: str) -> None:
        """Read lines of standard error up to one that begins so."""
        while line := self.stderr.readline():
            if line.decode().startswith(line_start):
                return
        raise AssertionError(f"{line_start} never came")

    def communicate(self, timeout_s: float = 120) -> tuple[int, str, str]:
        """Read both streams to their ends: status (a signal counts as -n), output, errors."""
        out, err = bytearray(), bytearray()
        end = time.monotonic() + timeout_s
        open_streams = {self.stdout: out, self.stderr: err}
        while open_streams:
            left = end - time.monotonic()
            readable, _, _ = select.select(list(open_streams), [], [], max(0.0, left))
            if not readable:
                self.send_signal(signal.SIGKILL)
                raise AssertionError(f"not finished after {timeout_s} s: {bytes(out)!r}, {bytes(err)!r}")
            for stream in readable:
                data = stream.read1(1 << 16)
                if data:
                    open_streams[stream].extend(data)
                else:
                    del open_streams[stream]
        return self.wait(), out.decode(), err.decode()

    def wait(self) -> int:
        socket.send_fds(self._server, [json.dumps({"wait": self.pid}).encode()], [])
        status = int(self._server.recv(100))
        for stream in (self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                stream.close()
        return status


def magicpig(
    *arguments: str,
    stdin: bytes | None = None,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 120,
    imports: tuple[str, ...] = LIBRARIES,
) -> Result:
    """As `command.magicpig`, without the seconds of importing."""
    with contextlib.ExitStack() as stack:
        given = None
        if stdin is not None:
            given = stack.enter_context(tempfile.TemporaryFile())
            given.write(stdin)
            given.seek(0)
        running = Warm(*arguments, stdin=given, env=env, cwd=cwd, imports=imports)
        return Result(*running.communicate(timeout_s))
