"""One warm Jupyter kernel for the notebooks of a run.

A new kernel for each notebook would import torch and load the model nine times. What leaks from one notebook into the
next is kept small: names are cleared and figures closed, and a kernel in which anything failed is not used again.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mikit import paths

KERNEL_NAME = "python3"
"""Jupyter's name for the native kernel."""

CLEAR = """
import sys as _sys
if "matplotlib.pyplot" in _sys.modules:
    _sys.modules["matplotlib.pyplot"].close("all")
get_ipython().reset(new_session=True)
"""


def kernel_environment() -> dict[str, str]:
    """The environment of a kernel: this process's, threads that do not spin, one place for outputs, inline figures."""
    return {
        **os.environ,
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "MIKIT_OUTPUTS": str(paths.outputs()),
        "MIKIT_CACHE": str(paths.cache()),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


@contextlib.contextmanager
def warm_kernel(log_file: Path) -> Iterator["Kernel"]:
    """A running kernel under this very interpreter; it is killed at the end, and ends by itself if this process dies.

    Args:
        log_file: gets what the kernel's process writes outside any cell, such as the last words of a crash.
    """
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from jupyter_core.utils import run_sync

    with tempfile.TemporaryDirectory(prefix="mikit-", dir=_short_folder()) as folder, log_file.open("wb") as output:
        # without kernel folders to search, the native kernel is this interpreter's, whatever is installed elsewhere
        manager = AsyncKernelManager(kernel_name=KERNEL_NAME, kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
        manager.connection_file = str(Path(folder) / "k.json")
        manager.transport = "tcp" if sys.platform == "win32" else "ipc"
        in_memory = ["--HistoryManager.hist_file=:memory:"]
        try:
            run_sync(manager.start_kernel)(
                extra_arguments=in_memory, env=kernel_environment(), stdout=output, stderr=output
            )
            client = manager.client()
            client.start_channels()
            try:
                run_sync(client.wait_for_ready)(timeout=120)
                client.allow_stdin = False
                yield Kernel(manager, client)
            finally:
                client.stop_channels()
        finally:
            if manager.has_kernel:
                run_sync(manager.shutdown_kernel)(now=True)


def _short_folder() -> str | None:
    """A folder whose path leaves room for a socket's name: 107 bytes at most on Linux, 103 on macOS."""
    return "/tmp" if len(tempfile.gettempdir()) > 60 and Path("/tmp").is_dir() else None


class Kernel:
    """A running kernel and the client that talks to it."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager = manager
        self.client = client

    def run(self, code: str) -> None:
        """Run code outside any notebook.

        Raises:
            nbclient.exceptions.CellExecutionError: it raised; `ename` and `evalue` say what.
            nbclient.exceptions.DeadKernelError: the kernel died.
        """
        import nbformat
        from nbclient import NotebookClient

        cell = nbformat.v4.new_code_cell(code)
        client = NotebookClient(nbformat.v4.new_notebook(cells=[cell]), km=self.manager)
        client.kc = self.client
        client.execute_cell(cell, 0, store_history=False)

    def clear(self) -> None:
        """Forget all names of the notebook before, and its figures."""
        self.run(CLEAR)
