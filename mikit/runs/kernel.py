"""A Jupyter kernel that many notebooks share, and who keeps it alive, clean and small.

A new kernel for each notebook would import torch and load the model nine times a feature. Between notebooks the kernel
puts back what the notebook changed (`mikit.runs.reset`); one in which something failed, that holds something which
can't be put back, or that has grown, is given up, and the next notebook gets a new one.
"""

import ast
import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mikit import paths

log = logging.getLogger(__name__)

KERNEL_NAME = "python3"
"""Jupyter's name for the native kernel."""
GROWTH_MIB = 1024
"""Memory that a kernel may add to what it held after its first notebook."""
REMEMBER = "__import__('mikit.runs.reset', fromlist=['*']).remember()"
RESTORE = "__import__('mikit.runs.reset', fromlist=['*']).restore({folder!r})"
START_SECONDS, RESET_SECONDS = 120, 180


def kernel_environment(others: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a kernel: this process's, threads that do not spin, one place for outputs, inline figures.

    Args:
        others: more variables, such as the number of threads of one kernel among several.
    """
    return {
        **os.environ,
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "MIKIT_OUTPUTS": str(paths.outputs()),
        "MIKIT_CACHE": str(paths.cache()),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        **(others or {}),
    }


@contextlib.contextmanager
def running_kernel(
    log_file: Path, environment: Mapping[str, str], seconds: float = START_SECONDS
) -> Iterator["Kernel"]:
    """A running kernel under this very interpreter; it is killed at the end, and ends by itself if this process dies.

    Args:
        log_file: gets what the kernel's process writes outside any cell, such as the last words of a crash.
        environment: the kernel's.
        seconds: how long it may take to start.
    """
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from jupyter_core.utils import run_sync

    with tempfile.TemporaryDirectory(prefix="mikit-", dir=short_folder()) as folder, log_file.open("ab") as output:
        # without kernel folders to search, the native kernel is this interpreter's, whatever is installed elsewhere
        manager = AsyncKernelManager(kernel_name=KERNEL_NAME, kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
        manager.connection_file = str(Path(folder) / "k.json")
        manager.transport = "tcp" if sys.platform == "win32" else "ipc"
        in_memory = ["--HistoryManager.hist_file=:memory:"]
        try:
            run_sync(manager.start_kernel)(
                extra_arguments=in_memory, env=dict(environment), stdout=output, stderr=output
            )
            client = manager.client()
            client.start_channels()
            try:
                run_sync(client.wait_for_ready)(timeout=seconds)
                client.allow_stdin = False
                yield Kernel(manager, client)
            finally:
                client.stop_channels()
        finally:
            if manager.has_kernel:
                run_sync(manager.shutdown_kernel)(now=True)


def short_folder() -> str | None:
    """A folder whose path leaves room for a socket's name: 107 bytes at most on Linux, 103 on macOS."""
    return "/tmp" if len(tempfile.gettempdir()) > 60 and Path("/tmp").is_dir() else None


class Kernel:
    """A running kernel and the client that talks to it."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager = manager
        self.client = client

    @property
    def pid(self) -> int:
        """Of its process."""
        return self.manager.provisioner.pid

    def run(self, code: str, seconds: float | None = None) -> None:
        """Run code outside any notebook.

        Args:
            code: Python.
            seconds: how long it may take.

        Raises:
            nbclient.exceptions.CellExecutionError: it raised; `ename` and `evalue` say what.
            nbclient.exceptions.DeadKernelError: the kernel died.
            nbclient.exceptions.CellTimeoutError: it took longer.
        """
        self._outputs(code, seconds)

    def ask(self, expression: str, seconds: float | None = None) -> Any:
        """The value of an expression that is made of plain numbers, texts, lists and mappings.

        Raises:
            ValueError: the kernel gave no such value.
        """
        values = [output for output in self._outputs(expression, seconds) if output.output_type == "execute_result"]
        try:
            return ast.literal_eval(values[-1].data["text/plain"])
        except (IndexError, SyntaxError) as error:
            raise ValueError(f"the kernel gave no plain value for {expression}") from error

    def _outputs(self, code: str, seconds: float | None) -> list[Any]:
        import nbformat
        from nbclient import NotebookClient

        cell = nbformat.v4.new_code_cell(code)
        client = NotebookClient(nbformat.v4.new_notebook(cells=[cell]), km=self.manager, timeout=seconds)
        client.kc = self.client
        client.execute_cell(cell, 0, store_history=False)
        return cell.outputs


class Keeper:
    """Keeps one kernel for many notebooks. Not for more than one thread.

    Args:
        log_file: as for `running_kernel`.
        environment: more variables for the kernel.
        growth_mib: memory that the kernel may add to what it held after its first notebook.
    """

    def __init__(
        self, log_file: Path, environment: Mapping[str, str] | None = None, growth_mib: float = GROWTH_MIB
    ) -> None:
        self.log_file = log_file
        self.growth_mib = growth_mib
        self.started = 0
        """Kernels started so far."""
        self.memory: list[int] = []
        """Bytes held by the present kernel after each of its notebooks."""
        self._others = dict(environment or {})
        self._environment: dict[str, str] = {}
        self._stack: contextlib.ExitStack | None = None
        self._kernel: Kernel | None = None
        self._is_clean = False

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.discard()

    @property
    def pid(self) -> int | None:
        """Of the kernel's process, if there is one."""
        return self._kernel.pid if self._kernel else None

    def is_warm(self) -> bool:
        """Whether there is a kernel, of this environment."""
        return self._kernel is not None and self._environment == kernel_environment(self._others)

    def ready(self, folder: Path | None = None, seconds: float = START_SECONDS) -> Kernel:
        """A kernel in which no notebook has left anything; it counts as used from now on.

        Args:
            folder: its current folder; this process's if not given.
            seconds: how long a new one may take to start.
        """
        if not self.is_warm() or not (self._is_clean or self._reset(folder or Path.cwd())):
            self.discard()
        if self._kernel is None:
            self._start(seconds)
        assert self._kernel is not None
        self._is_clean = False
        return self._kernel

    def remember(self) -> None:
        """Take what the kernel has loaded by now as what every notebook starts from."""
        assert self._kernel is not None
        self._kernel.run(REMEMBER, RESET_SECONDS)
        self._is_clean = True

    def discard(self) -> None:
        """Kill the kernel, if there is one."""
        stack, self._stack, self._kernel = self._stack, None, None
        if stack is not None:
            stack.close()

    def kill(self) -> None:
        """Kill the kernel's process at once, from any thread; whoever waits for it sees it die."""
        import signal

        if pid := self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))

    def _start(self, seconds: float) -> None:
        from nbclient.exceptions import DeadKernelError

        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._environment = kernel_environment(self._others)
        stack = contextlib.ExitStack()
        try:
            self._kernel = stack.enter_context(running_kernel(self.log_file, self._environment, seconds))
            self._stack = stack
            self._kernel.run(REMEMBER, RESET_SECONDS)
        except BaseException as error:
            self._kernel = self._stack = None
            stack.close()
            if type(error) is RuntimeError:
                # jupyter_client, of a kernel that does not answer or dies as it starts
                raise DeadKernelError(str(error)) from error
            raise
        self.started += 1
        self.memory = []

    def _reset(self, folder: Path) -> bool:
        """Have the kernel put back what a notebook changed, and tell whether it can be used again."""
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

        assert self._kernel is not None
        try:
            found = self._kernel.ask(RESTORE.format(folder=str(folder)), RESET_SECONDS)
        except (CellExecutionError, CellTimeoutError, DeadKernelError, ValueError) as error:
            log.debug("kernel %s could not be put back (%s): a new one", self.pid, type(error).__name__)
            return False
        if not isinstance(found, dict):
            return False
        self.memory.append(found["memory"])
        grown = (found["memory"] - self.memory[0]) / 2**20
        reason = found["recycle"] or (f"it has grown by {grown:.0f} MiB" if grown > self.growth_mib else None)
        if reason:
            log.debug("kernel %s is given up: %s", self.pid, reason)
        return reason is None
