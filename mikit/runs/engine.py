"""The nine notebooks of a run, one after another: what is fresh is kept, the rest is executed and must leave its record."""

import ast
import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mikit import paths
from mikit.errors import BadInput, KernelLost, MikitError, StepFailed, Stopped
from mikit.runs.directory import RunDirectory
from mikit.runs.freshness import STEPS
from mikit.runs.kernel import Keeper
from mikit.runs.logs import timed
from mikit.settings import OPERATIONAL, Params, make_params
from mikit.trace import Trace

log = logging.getLogger(__name__)

HOWS = {"DeadKernelError": "died (out of memory?)", "CellTimeoutError": "hung"}
"""How a kernel is lost, by what is raised."""

NOTEBOOKS = (
    "step1_initial_observation",
    "step2_generate_input_hypotheses",
    "step3_design_input_experiments",
    "step4_score_input_experiments",
    "step5_run_intervention",
    "step6_generate_output_hypotheses",
    "step7_score_output_hypotheses",
    "step8_build_chain_hypotheses",
    "step9_synthesize_chain_explanation",
)
"""Names of the pipeline's notebooks, in order."""

PREFLIGHT = """
from mikit.runs import open_run
from mikit.runs.logs import configure_logging
configure_logging()
open_run(model={model!r}, layer={layer!r}, feature={feature!r}, run={run!r}, **{settings!r}).target
"""
"""What must hold before any notebook starts: a target with that layer and feature. The kernel keeps it for the steps."""


@dataclass(frozen=True)
class Manner:
    """How the steps of a run are executed; nothing of it changes what they find."""

    keeper: Keeper | None = None
    """Of the kernel; without one the run starts a kernel of its own."""
    repeats: int = 0
    """How often a step is repeated whose kernel died or hung."""
    cell_seconds: float | None = None
    """How long a cell may take before its kernel counts as hung."""
    is_told: bool = True
    """Whether each step is logged, with what its cells log."""
    should_stop: Callable[[], bool] = bool
    """Asked between two steps."""


def run_pipeline(
    params: Params,
    folder: Path | None = None,
    *,
    force: bool = False,
    preflight: str = PREFLIGHT,
    manner: Manner | None = None,
) -> Trace:
    """Run what is not up to date of a run, and give its trace.

    Args:
        params: what to run; they also say where.
        folder: the notebooks, those of the pipeline if not given.
        force: forget what the run has and start over.
        preflight: Python code, formatted with the params, that the kernel runs before the first notebook.
        manner: how to execute the steps.

    Raises:
        BadInput: a parameter that the target or a step refuses, a notebook that does not take the parameters, or a
            folder that can't be written.
        StepFailed: a notebook raised, its kernel died, or it left no valid record.
        RunIsBusy: another process holds the run.
        Stopped: `manner.should_stop` said so.
    """
    folder = folder or paths.notebooks() / "pipeline"
    manner = manner or Manner()
    values = notebook_parameters(params)
    for name in NOTEBOOKS:
        check_parameters(folder / f"{name}.ipynb", values)
    directory = RunDirectory(params)
    if directory.params.explainer == "llm":
        from mikit.llm import open_client

        open_client(directory.params, None)
    if directory.params.source == "neuronpedia":
        from mikit.evidence.neuronpedia import feature_record

        feature_record(directory.params)
    with directory.lock(), contextlib.ExitStack() as stack:
        if force:
            _forget(directory)
        keeper: Keeper | None = None
        kept: list[int] = []
        for step in STEPS:
            if _is_done(directory, step):
                kept.append(step)
                continue
            if manner.should_stop():
                raise Stopped(f"stopped before step {step}")
            if keeper is None:
                _tell(kept, manner)
                keeper = manner.keeper or stack.enter_context(Keeper(directory.path / ".kernel.log"))
                _with_repeats(manner, keeper, partial(_preflight, keeper, preflight.format(**values), manner))
                # an earlier result goes when a new one can be made, and before it is begun
                directory.trace_path.unlink(missing_ok=True)
                directory.report_path.unlink(missing_ok=True)
            if step == STEPS[-1] and (params.max_rounds or (directory.path / "rounds").exists()):
                rounds = partial(_run_refinement, directory, folder / "refine.ipynb", values, keeper, manner)
                _with_repeats(manner, keeper, rounds)
            work = partial(_ensure_step, directory, step, folder / _file(step), values, keeper, manner)
            _with_repeats(manner, keeper, work)
        if keeper is None:
            _tell(kept, manner)
        trace = directory.read_trace()
        assert trace is not None, "the last step is done only with a trace"
        if not directory.report_path.exists():
            _report(trace, directory)
        return trace


def refine_pipeline(given: Params, max_rounds: int, said: set[str]) -> tuple[Params, bool]:
    """Go on with an existing run: more rounds of refinement, then the verdict anew.

    Args:
        given: names the run by layer, feature and run; of the others, those on how it is carried out count.
        max_rounds: of this call.
        said: the names of the parameters that somebody gave.

    Returns:
        The run's parameters, and whether there was anything to do.

    Raises:
        BadInput: there is no such run, or a parameter is given that its results follow from.
    """
    from mikit.runs.refinement import continued

    where = RunDirectory(given)
    first = where.read(1)
    if first is None:
        raise BadInput(f"{where.path} holds no run: valid: one that mikit run began, by --layer, --feature and --run")
    if fixed := sorted(said - OPERATIONAL - {"layer", "feature", "run"}):
        raise BadInput(f"{fixed[0]} is the run's own and can't be changed: valid: {', '.join(sorted(OPERATIONAL))}")
    changed = {name: getattr(given, name) for name in OPERATIONAL & said}
    params = make_params(first.params | changed, where=str(where.step_path(1)))
    begun = continued(RunDirectory(params), max_rounds)
    if begun:
        run_pipeline(params)
    return params, begun


def _with_repeats(manner: Manner, keeper: Keeper, work: Callable[[], object]) -> None:
    """Do something in the kernel; a kernel in which anything failed is given up, and lost ones are replaced."""
    for left in reversed(range(manner.repeats + 1)):
        try:
            work()
        except KernelLost as lost:
            keeper.discard()
            if not left or manner.should_stop():
                raise
            log.debug("%s; it runs again in a new kernel", lost)
        except BaseException:
            keeper.discard()
            raise
        else:
            return


def notebook_parameters(params: Params) -> dict[str, Any]:
    """What the notebooks are given: four names, and `settings` with every other parameter that differs from its default."""
    plain = params.model_dump(mode="json")
    named = {name: plain[name] for name in ("model", "layer", "feature", "run")}
    settings = params.model_dump(mode="json", exclude_defaults=True, exclude=set(named))
    return named | {"settings": {name: value for name, value in settings.items() if value != {}}}


def check_parameters(notebook: Path, values: Mapping[str, Any]) -> None:
    """Refuse a notebook that would ignore a parameter; papermill only warns.

    Raises:
        BadInput: the notebook is missing or torn, has no cell tagged `parameters`, or that cell lacks one of the names.
    """
    try:
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
        sources = ["".join(c["source"]) for c in cells if "parameters" in c["metadata"].get("tags", [])]
        known = assigned_names(sources[0]) if sources else []
    except (OSError, ValueError, KeyError, TypeError, SyntaxError) as error:
        raise BadInput(f"{notebook} can't be read as a notebook: {type(error).__name__}: {error}") from None
    if not sources:
        raise BadInput(f"{notebook} has no cell tagged 'parameters': it would run with its own defaults")
    unknown = [name for name in values if name not in known]
    if unknown:
        raise BadInput(f"{notebook}: unknown parameter {unknown[0]!r}: its parameters cell has {', '.join(known)}")


def assigned_names(source: str) -> list[str]:
    """Names that a cell's top-level assignments bind, in order."""
    names: list[str] = []
    for node in ast.parse(source).body:
        targets: Sequence[ast.expr] = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) and node.value else targets
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def _tell(kept: Sequence[int], manner: Manner) -> None:
    if kept and manner.is_told:
        log.info("up to date and kept: step %s", ", ".join(map(str, kept)))


def _shown(what: str, manner: Manner) -> AbstractContextManager[None]:
    return timed(what) if manner.is_told else contextlib.nullcontext()


def _file(step: int) -> str:
    return f"{NOTEBOOKS[step - 1]}.ipynb"


def _forget(directory: RunDirectory) -> None:
    shutil.rmtree(directory.path / "rounds", ignore_errors=True)
    for path in directory.path.iterdir():
        if path.suffix in {".ipynb", ".json", ".html"}:
            path.unlink()


def _is_done(directory: RunDirectory, step: int) -> bool:
    """Whether a step has a fresh record, its executed notebook and, if it is the last, the trace."""
    return directory.is_fresh(step) and _has_notebook(directory, step) and (step < STEPS[-1] or _has_trace(directory))


def _has_trace(directory: RunDirectory) -> bool:
    return directory.read_trace() is not None


def _partial(directory: RunDirectory, step: int) -> Path:
    return directory.path / f".{NOTEBOOKS[step - 1]}.partial.ipynb"


def _has_notebook(directory: RunDirectory, step: int) -> bool:
    """Whether the executed notebook is there; stopped between record and notebook, a run left it under another name."""
    final, partial = directory.path / _file(step), _partial(directory, step)
    if not final.exists() and partial.exists():
        partial.replace(final)
    return final.exists()


def _preflight(keeper: Keeper, code: str, manner: Manner) -> None:
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    what = "checks before the first step"
    try:
        with _shown(what, manner):
            keeper.ready().run(code, manner.cell_seconds)
            keeper.remember()
    except CellExecutionError as error:
        raise _as_ours(error.ename, error.evalue, what) from None
    except DeadKernelError:
        raise _lost("died (out of memory?)", what) from None
    except CellTimeoutError:
        raise _lost("hung", what) from None


def _as_ours(name: str, text: str, where: str, step: int | None = None) -> MikitError:
    """What was raised in a kernel, as an error of this process: bad input stays bad input."""
    line = next(iter(text.splitlines()), "")
    cause = f"{name}: {line}"
    error = BadInput(line) if name == BadInput.__name__ else StepFailed(f"{where}: {cause}")
    error.step, error.cause = step, line if isinstance(error, BadInput) else cause
    return error


def _step_failed(cause: str, where: str, step: int) -> StepFailed:
    error = StepFailed(f"{where}: {cause}")
    error.step, error.cause = step, cause
    return error


def _lost(how: str, where: str, step: int | None = None) -> KernelLost:
    error = KernelLost(f"{where}: the kernel {how}")
    error.step, error.cause = step, f"the kernel {how}"
    return error


def _ensure_step(
    directory: RunDirectory, step: int, source: Path, values: dict[str, Any], keeper: Keeper, manner: Manner
) -> None:
    """Run a step unless it is done: a kernel may die after its record."""
    if not _is_done(directory, step):
        _run_step(directory, step, source, values, keeper, manner)


def _run_step(
    directory: RunDirectory, step: int, source: Path, values: dict[str, Any], keeper: Keeper, manner: Manner
) -> None:
    """Execute one notebook. Only its record proves that it worked: papermill takes a dead kernel for success."""
    from papermill.exceptions import PapermillExecutionError

    from mikit.runs.papermill_engine import LOST, LOST_NAMES, execute

    final, partial = directory.path / _file(step), _partial(directory, step)
    failed = final.with_suffix(".failed.ipynb")
    for old in (final, partial, failed):
        old.unlink(missing_ok=True)
    where = f"step {step} failed in {failed} (steps before it are kept: mend the cause and run the same again)"
    try:
        with _shown(f"step {step} of 9, {NOTEBOOKS[step - 1].split('_', 1)[1].replace('_', ' ')}", manner):
            execute(source, partial, final, values, keeper, tells=manner.is_told, cell_seconds=manner.cell_seconds)
        if fault := _fault(directory, step):
            raise _step_failed(fault, where, step)
    except PapermillExecutionError as error:
        if error.ename in LOST_NAMES:
            raise _lost(HOWS[error.ename], where, step) from None
        raise _as_ours(error.ename, error.evalue, where, step) from None
    except LOST as error:
        # before the notebook's first cell there is no notebook to look at
        place = where if partial.exists() else f"step {step} failed"
        raise _lost(HOWS[type(error).__name__], place, step) from None
    else:
        partial.replace(final)
    finally:
        # stopped between its record and its end, a step is done: the next run takes the partial notebook for it
        if partial.exists() and not directory.is_fresh(step):
            partial.replace(failed)


def _run_refinement(
    directory: RunDirectory, source: Path, values: dict[str, Any], keeper: Keeper, manner: Manner
) -> None:
    """Execute the notebook of the rounds; each round leaves its own record, so that a failure loses none."""
    from papermill.exceptions import PapermillExecutionError

    from mikit.runs.papermill_engine import LOST, LOST_NAMES, execute

    check_parameters(source, values)
    final = directory.path / "refine.ipynb"
    partial, failed = directory.path / ".refine.partial.ipynb", final.with_suffix(".failed.ipynb")
    for old in (final, partial, failed):
        old.unlink(missing_ok=True)
    where = f"refinement failed in {failed} (rounds before it are kept: mend the cause and run the same again)"
    try:
        with _shown("rounds of refinement", manner):
            execute(source, partial, final, values, keeper, tells=manner.is_told, cell_seconds=manner.cell_seconds)
        partial.replace(final)
    except PapermillExecutionError as error:
        if error.ename in LOST_NAMES:
            raise _lost(HOWS[error.ename], where) from None
        raise _as_ours(error.ename, error.evalue, where) from None
    except LOST as error:
        raise _lost(HOWS[type(error).__name__], "refinement failed") from None
    finally:
        if partial.exists():
            partial.replace(failed)


def _fault(directory: RunDirectory, step: int) -> str | None:
    """What a notebook that ran to its end failed to leave."""
    if directory.read(step) is None:
        return f"it left no valid {directory.step_path(step).name}"
    if not directory.is_fresh(step):
        return "what it read, or its own record, changed while it ran or is from another run"
    if step == STEPS[-1] and not _has_trace(directory):
        return f"it left no valid {directory.trace_path.name}"
    return None


def _report(trace: Trace, directory: RunDirectory) -> None:
    from mikit.runs.report import write_report

    write_report(trace, directory.report_path)
