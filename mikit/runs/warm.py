"""The papermill engine `warm`: every notebook of a process runs in one kernel, which is put back in between.

    papermill --engine warm in.ipynb out.ipynb
    papermill.execute_notebook("in.ipynb", "out.ipynb", engine_name="warm")

papermill imports every registered engine as it is imported itself: this module imports nothing, and the engine proper
(`mikit.runs.papermill_engine`) when a notebook is executed.
"""

from typing import Any


class WarmEngine:
    """Stands for the engine until it is used."""

    @classmethod
    def execute_notebook(cls, nb: Any, kernel_name: str, **options: Any) -> Any:
        """Execute a notebook; see `mikit.runs.papermill_engine.WarmEngine`."""
        return _engine().execute_notebook(nb, kernel_name, **options)

    @classmethod
    def nb_kernel_name(cls, nb: Any, name: str | None = None) -> str:
        """The kernel's name: this interpreter's, unless another is asked for by name."""
        from mikit.runs.kernel import KERNEL_NAME

        return name or KERNEL_NAME

    @classmethod
    def nb_language(cls, nb: Any, language: str | None = None) -> str:
        """The language of the notebook, Python unless it says otherwise."""
        return language or nb.metadata.get("kernelspec", {}).get("language") or "python"


def _engine() -> Any:
    from mikit.runs.papermill_engine import WarmEngine as engine

    return engine
