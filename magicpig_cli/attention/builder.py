"""Who builds a layer's tables: the thread that reads, on a CPU; one beside it, on a GPU.

While a GPU computes the next layer the CPU has nothing to do, so the tables of the layer that is
finished are built meanwhile. On a CPU both would want the same cores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Protocol

import numba
import torch


class Builder(Protocol):
    """Runs what builds the tables of one layer after the other."""

    @property
    def build_s(self) -> float:
        """Seconds that building has taken, whether anyone waited for it or not."""

    def submit(self, build: Callable[[], None]) -> None:
        """Have `build` done, now or before `wait` returns."""

    def wait(self) -> None:
        """Return when all is done; raises what one of the builds raised."""

    def drop(self) -> None:
        """Leave undone what has not begun: the reading was interrupted, and nobody should wait for it."""


def builder(device: torch.device) -> Builder:
    """What suits a model on `device`."""
    return AtOnce() if device.type == "cpu" else Beside()


class AtOnce:
    """Builds in the caller's thread."""

    def __init__(self) -> None:
        self._build_s = 0.0

    @property
    def build_s(self) -> float:
        """See `Builder`."""
        return self._build_s

    def submit(self, build: Callable[[], None]) -> None:
        """See `Builder`."""
        started = perf_counter()
        try:
            build()
        finally:
            self._build_s += perf_counter() - started

    def wait(self) -> None:
        """See `Builder`."""

    def drop(self) -> None:
        """See `Builder`."""


class Beside:
    """Builds in one other thread, in order, with as many kernel threads as the caller's has.

    The thread is made for the first build and ends with the object.
    """

    def __init__(self) -> None:
        self._work = AtOnce()
        self._waiting: deque[Future[None]] = deque()
        self._thread: ThreadPoolExecutor | None = None

    @property
    def build_s(self) -> float:
        """See `Builder`."""
        return self._work.build_s

    def submit(self, build: Callable[[], None]) -> None:
        """See `Builder`."""
        if self._thread is None:
            # numba counts threads per calling thread; unset, a kernel would take every core.
            self._thread = ThreadPoolExecutor(
                1, "tables", initializer=numba.set_num_threads, initargs=(numba.get_num_threads(),)
            )
        self._waiting.append(self._thread.submit(self._work.submit, build))

    def wait(self) -> None:
        """See `Builder`."""
        try:
            while self._waiting:
                self._waiting.popleft().result()
        except BaseException:  # an interruption, or one of the builds
            self.drop()
            raise

    def drop(self) -> None:
        """See `Builder`."""
        for build in self._waiting:
            build.cancel()
        self._waiting.clear()
