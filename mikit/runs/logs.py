"""What a person sees of a run: log lines on standard error, and a clock beside the step that is running."""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from mikit.progress import working

log = logging.getLogger(__name__)
LOUD = ("papermill", "nbclient", "traitlets", "asyncio")
"""Libraries that repeat in many lines what one line of ours says."""


class _Stderr(logging.StreamHandler):
    """Writes to what `sys.stderr` is at the moment, so that a live display can move out of the way."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _value: TextIO) -> None:
        pass


def configure_logging(debug: bool = False) -> None:
    """Send the package's log lines to standard error; those of other libraries only when debugging."""
    level = logging.DEBUG if debug else logging.WARNING
    logging.basicConfig(format="%(message)s", level=level, handlers=[_Stderr()], force=True)
    logging.getLogger("mikit").setLevel(logging.DEBUG if debug else logging.INFO)
    for name in LOUD:
        logging.getLogger(name).setLevel(logging.NOTSET if debug else logging.CRITICAL)


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    """Show a running clock on a terminal while the block runs; log how long it took when it ends well."""
    started = time.monotonic()
    with working(what, logs=False):
        yield
    log.info("%s: %.1f s", what, time.monotonic() - started)
