"""A papermill engine that runs a notebook in a kernel that is already there, and tells the truth about a failure."""

import logging
from pathlib import Path
from typing import Any

import nbformat
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.log import logger

from mikit.files import write_text
from mikit.runs.kernel import KERNEL_NAME, Kernel

log = logging.getLogger(__name__)
NAME = "mikit-warm"
IOPUB_SECONDS = 60
"""How long a busy machine may take to deliver a cell's output after the cell has ended."""


class TellingClient(PapermillNotebookClient):
    """Passes on what a cell logs, such as the progress of long work, while it runs; the notebook keeps it too."""

    def process_message(self, msg: dict[str, Any], cell: nbformat.NotebookNode, cell_index: int) -> Any:
        """Handle a message of the kernel."""
        if msg["msg_type"] == "stream" and msg["content"]["name"] == "stderr":
            for line in msg["content"]["text"].splitlines():
                log.info("  %s", line)
        return super().process_message(msg, cell, cell_index)


class WarmEngine(NBClientEngine):
    """Runs in a given kernel. What has been executed is saved before the record is made, and when anything goes wrong.

    papermill marks every cell `completed` after a kernel's death, and then writes nothing.
    """

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: NotebookExecutionManager,
        kernel_name: str,
        *,
        kernel: Kernel,
        partial: str,
        final: str,
        **_papermill: Any,
    ) -> Any:
        """Execute `nb_man.nb`.

        Args:
            nb_man: papermill's wrapper of the notebook.
            kernel_name: the kernel's name.
            kernel: where to run.
            partial: path of the notebook while it is unfinished.
            final: path that it will have.
        """
        notebook = nb_man.nb
        notebook.metadata.papermill["output_path"] = final

        def keep_before_record(cell: nbformat.NotebookNode, cell_index: int) -> None:
            if is_record(cell):
                save(notebook, partial)

        client = TellingClient(
            nb_man,
            km=kernel.manager,
            kernel_name=kernel_name,
            iopub_timeout=IOPUB_SECONDS,
            on_cell_start=keep_before_record,
            log=logger,
        )
        client.kc = kernel.client
        try:
            return client.execute()
        except BaseException as error:
            if not is_record(last_started(notebook)):
                mark_failed(notebook, error)
                save(notebook, partial)
            raise


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


def execute(source: Path, partial: Path, final: Path, parameters: dict[str, Any], kernel: Kernel) -> None:
    """Execute the notebook `source` in `kernel`, leaving it at `partial`, whether it ends well or not.

    Raises:
        papermill.exceptions.PapermillExecutionError: a cell raised.
        nbclient.exceptions.DeadKernelError: the kernel died.
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
        kernel=kernel,
        partial=str(partial),
        final=str(final),
    )


def _literal(path: Path) -> str:
    """The path as papermill wants it, which takes it for a format string."""
    return str(path).replace("{", "{{").replace("}", "}}")
