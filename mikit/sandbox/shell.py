"""The front end of a worker: IPython's shell, with state, `Out` and tracebacks, whose output is kept up to a bound."""

import io
import signal
import sys
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

LEFT_OUT = "\n... output left out: more than {bound} bytes"
NAME = "In"


class Bounded(io.TextIOBase):
    """A text stream that keeps what is written up to a number of bytes in UTF-8, and forgets the rest."""

    def __init__(self, bound: int) -> None:
        self._bound = self._left = bound
        self._parts: list[str] = []
        self._cut = False

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Keep what there is room for."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if not self._cut and text:
            # one character is one byte or more: never encode more than could be kept
            encoded = text[: self._left + 1].encode("utf-8", "replace")
            self._cut = len(encoded) > self._left
            self._parts.append(encoded[: self._left].decode("utf-8", "ignore"))
            self._left -= min(len(encoded), self._left)
        return len(text)

    def take(self) -> str:
        """What was written since the last time."""
        text = "".join(self._parts) + (LEFT_OUT.format(bound=self._bound) if self._cut else "")
        self._parts, self._left, self._cut = [], self._bound, False
        return text


def make_shell(folder: Path) -> InteractiveShell:
    """The shell that every worker gets a copy of, warm: what it imports at its first cell and its first error is imported.

    Args:
        folder: where IPython may keep its profile, until workers confine themselves.
    """
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryAccessor.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.xmode = "Plain"
    config.InteractiveShell.ipython_dir = str(folder)
    config.InteractiveShell.cache_size = 100
    shell = InteractiveShell.instance(config=config)
    stream = Bounded(1 << 16)
    for code in ("1 + 1", "def f(x):\n    return 1 / x\nf(0)", "x = (", "import torch\ntorch.ones(2) @ torch.ones(3)"):
        run(shell, code, stream)
        stream.take()
    shell.reset(new_session=True)
    return shell


def run(shell: InteractiveShell, code: str, stream: Bounded) -> bool:
    """Run code as one cell, with its output and its traceback going to `stream`.

    Returns:
        Whether it ran without an error.
    """
    out, err = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = stream
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        result = shell.run_cell(code, store_history=True)
        return bool(result.success)
    except KeyboardInterrupt:
        stream.write("KeyboardInterrupt\n")
        return False
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout, sys.stderr = out, err


def namespace(shell: InteractiveShell, names: dict[str, Any]) -> None:
    """Put names into the shell's namespace."""
    shell.push(names)
