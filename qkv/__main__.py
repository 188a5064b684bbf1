"""`python -m qkv`, and the command `qkv`."""

import signal
import sys


def run() -> int:
    """Run the command line; Ctrl-C while it is imported ends the process without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not ignored, as in the background of a shell
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from qkv.cli import main

    signal.signal(signal.SIGINT, handler)
    return main()


if __name__ == "__main__":
    sys.exit(run())
