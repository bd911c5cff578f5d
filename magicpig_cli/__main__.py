"""`python -m magicpig_cli` and the `magicpig` script: ready for Ctrl-C before anything is imported."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; ends the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    from magicpig_cli.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
