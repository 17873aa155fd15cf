"""A papermill engine that runs notebooks in a kernel that is already there, and tells the truth about a failure."""

import atexit
import logging
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import nbformat
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillException
from papermill.log import logger

from mikit.files import write_text
from mikit.runs.kernel import GROWTH_MIB, KERNEL_NAME, START_SECONDS, Keeper, Kernel

log = logging.getLogger(__name__)
NAME = "mikit-warm"
IOPUB_SECONDS = 60
"""How long a busy machine may take to deliver a cell's output after the cell has ended."""
LOST = (DeadKernelError, CellTimeoutError)
"""What is raised when a kernel dies, or hangs until its time is over."""
LOST_NAMES = {error.__name__ for error in LOST}
_mine = threading.local()


class TellingClient(PapermillNotebookClient):
    """Passes on what a cell logs, such as the progress of long work, while it runs; the notebook keeps it too."""

    tells = False

    def process_message(self, msg: dict[str, Any], cell: nbformat.NotebookNode, cell_index: int) -> Any:
        """Handle a message of the kernel."""
        if self.tells and msg["msg_type"] == "stream" and msg["content"]["name"] == "stderr":
            for line in msg["content"]["text"].splitlines():
                log.info("  %s", line)
        return super().process_message(msg, cell, cell_index)


class WarmEngine(NBClientEngine):
    """Runs notebooks in one kernel. A dead or hung kernel is replaced, and its notebook repeated.

    papermill marks every cell `completed` after a kernel's death, shows no error, and writes no banner. Here the cell
    that was running is marked as failed with an error output, from which papermill makes its banner and its exception.
    """

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: NotebookExecutionManager,
        kernel_name: str,
        log_output: bool = False,
        stdout_file: Any = None,
        stderr_file: Any = None,
        start_timeout: float = START_SECONDS,
        execution_timeout: float | None = None,
        *,
        keeper: Keeper | None = None,
        repeats: int = 1,
        growth_mib: float | None = None,
        partial: str | None = None,
        final: str | None = None,
        tells: bool = False,
        **options: Any,
    ) -> None:
        """Execute `nb_man.nb`.

        Args:
            nb_man: papermill's wrapper of the notebook.
            kernel_name: must be this interpreter's.
            log_output: also log what cells write.
            stdout_file: file that gets what cells write.
            stderr_file: the same for standard error.
            start_timeout: seconds that a kernel may take to start.
            execution_timeout: seconds that a cell may take.
            keeper: of the kernel; the calling thread's own if not given.
            repeats: how often a notebook is repeated whose kernel died or hung.
            growth_mib: memory that the kernel may add to what it held after its first notebook.
            partial: path of the notebook while it is unfinished, for a caller that looks for a record.
            final: path that it will have.
            tells: whether to pass on what cells log.
            options: of nbclient, such as `timeout`.
        """
        if kernel_name != KERNEL_NAME:
            raise PapermillException(
                f"the warm engine runs notebooks in this interpreter, not in kernel {kernel_name!r}: "
                f"valid: -k {KERNEL_NAME}, or --engine nbclient"
            )
        keeper = keeper or _own_keeper()
        if growth_mib is not None:
            keeper.growth_mib = growth_mib
        if final:
            nb_man.nb.metadata.papermill["output_path"] = final
        unused = {"input_path", "timeout", "startup_timeout", "output_path"}
        kept = {name: value for name, value in options.items() if name not in unused}
        kept |= {"timeout": execution_timeout or options.get("timeout"), "kernel_name": kernel_name, "log": logger}
        kept |= {"log_output": log_output, "stdout_file": stdout_file, "stderr_file": stderr_file}
        for left in reversed(range(repeats + 1)):
            try:
                _execute(nb_man, keeper.ready(seconds=start_timeout), partial, tells, kept)
            except LOST as error:
                keeper.discard()
                if left and not is_record(last_started(nb_man.nb)):
                    logger.warning(
                        "the kernel is lost (%s): the notebook runs again in a new one", type(error).__name__
                    )
                    nb_man.notebook_start()
                    continue
                if not nb_man.nb.metadata.papermill.get("exception"):
                    raise
                # papermill raises from the error output, below its banner
            except BaseException:
                keeper.discard()
                raise
            break
        if nb_man.nb.metadata.papermill.get("exception"):
            keeper.discard()


def _execute(
    nb_man: NotebookExecutionManager, kernel: Kernel, partial: str | None, tells: bool, options: dict[str, Any]
) -> None:
    notebook = nb_man.nb

    def keep_before_record(cell: nbformat.NotebookNode, cell_index: int) -> None:
        if partial and is_record(cell):
            save(notebook, partial)

    defaults = {"iopub_timeout": IOPUB_SECONDS, "on_cell_start": keep_before_record}
    client = TellingClient(nb_man, km=kernel.manager, **(defaults | options))
    client.tells = tells
    client.kc = kernel.client
    try:
        client.execute()
    except BaseException as error:
        if not (partial and is_record(last_started(notebook))):
            mark_failed(notebook, error)
            if partial:
                save(notebook, partial)
        raise


def _own_keeper() -> Keeper:
    """The kernel of this thread, for notebooks run through papermill itself; it ends with the process."""
    if getattr(_mine, "process", None) != os.getpid():
        folder = tempfile.TemporaryDirectory(prefix="mikit-warm-")
        _mine.keeper, _mine.process = Keeper(Path(folder.name) / "kernel.log", growth_mib=GROWTH_MIB), os.getpid()
        atexit.register(folder.cleanup)
        atexit.register(_mine.keeper.discard)
    return _mine.keeper


def last_started(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """The cell that was running last."""
    return next((cell for cell in reversed(notebook.cells) if cell.metadata.papermill.get("start_time")), None)


def is_record(cell: nbformat.NotebookNode | None) -> bool:
    """Whether a cell is the one that records the step. Stopped in there, the step may be done, whatever the cell says."""
    return cell is not None and "record" in cell.metadata.get("tags", [])


def mark_failed(notebook: nbformat.NotebookNode, error: BaseException) -> None:
    """Show the error on the cell that was running when the kernel died or the run was interrupted."""
    cell = last_started(notebook)
    if cell is None:
        return
    cell.metadata.papermill.update(status=NotebookExecutionManager.FAILED, exception=True)
    notebook.metadata.papermill["exception"] = True
    if cell.cell_type == "code":
        name, text = type(error).__name__, str(error)
        line = f"{name}: {text}".removesuffix(": ")
        cell.outputs.append(nbformat.v4.new_output("error", ename=name, evalue=text, traceback=[line]))


def save(notebook: nbformat.NotebookNode, path: str) -> None:
    """Write a notebook, atomically."""
    write_text(Path(path), nbformat.writes(notebook))


def execute(
    source: Path,
    partial: Path,
    final: Path,
    parameters: dict[str, Any],
    keeper: Keeper,
    *,
    tells: bool = True,
    cell_seconds: float | None = None,
) -> None:
    """Execute the notebook `source`, leaving it at `partial`, whether it ends well or not.

    Raises:
        papermill.exceptions.PapermillExecutionError: a cell raised, or the kernel was lost (`ename` in `LOST_NAMES`).
    """
    import papermill

    papermill_engines.register(NAME, WarmEngine)
    papermill.execute_notebook(
        _literal(source),
        _literal(partial),
        parameters,
        engine_name=NAME,
        kernel_name=KERNEL_NAME,
        language="python",
        progress_bar=False,
        request_save_on_cell_execute=False,
        execution_timeout=cell_seconds,
        keeper=keeper,
        repeats=0,
        partial=str(partial),
        final=str(final),
        tells=tells,
    )


def _literal(path: Path) -> str:
    """The path as papermill wants it, which takes it for a format string."""
    return str(path).replace("{", "{{").replace("}", "}}")
