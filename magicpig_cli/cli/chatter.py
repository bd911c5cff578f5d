"""Keeps libraries quiet: one call before the first heavy import, unless `--verbose`.

Streams are the second line of defence: `views.streams.private` takes the numbered streams away.
"""

from __future__ import annotations

import logging
import os
import warnings

_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "PYTHONWARNINGS": "ignore",
}
_ALWAYS = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Threads that wait by spinning for long take the cores from those that work, as soon as anything
    # else runs on the machine: a step of 0.5 ms then took 37. Sleeping at once costs a quiet machine
    # 10 ms per token, so they spin for some 10 microseconds and then sleep.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "5000",
}


def set_up_libraries(verbose: bool, offline: bool) -> None:
    """Set what libraries read when they are imported.

    Parameters
    ----------
    verbose : bool
        Let them log and warn.
    offline : bool
        Tell the hub client as well that there is no network.
    """
    for name, value in _ALWAYS.items():
        os.environ.setdefault(name, value)
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    if verbose:
        return
    os.environ.update(_QUIET)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
