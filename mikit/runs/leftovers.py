"""What lies in the outputs folder that is not as a finished run or scan leaves it, and what to do about each."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from mikit import paths
from mikit.progress import working
from mikit.runs.doctor import Finding
from mikit.runs.freshness import STEPS
from mikit.trace import StepFile, Trace

OLD_RUN = "run it again with the same parameters: what is whole is kept"


def examine_outputs() -> list[Finding]:
    """A finding for each fault, after one that counts the runs; nothing is changed."""
    with working("looking through the outputs folder"):
        return _examined()


def _examined() -> list[Finding]:
    runs = [folder for folder in sorted(paths.outputs().glob("layer-*/feature-*/*")) if _is_run(folder)]
    finished = sum((folder / "trace.json").is_file() for folder in runs)
    count = Finding("runs", "ok", f"{len(runs)} in {paths.outputs()}, {finished} finished")
    return [count, *(finding for folder in runs for finding in _run(folder)), *_evidence()]


def _is_run(folder: Path) -> bool:
    return folder.is_dir() and any((folder / f"step{step}.json").is_file() for step in STEPS)


def _run(folder: Path) -> Iterator[Finding]:
    name = f"run {folder.relative_to(paths.outputs())}"
    files: dict[str, type[BaseModel]] = {f"step{step}.json": StepFile for step in STEPS} | {"trace.json": Trace}
    torn = [each for each, schema in files.items() if _is_torn(folder / each, schema)]
    if torn:
        yield Finding(name, "note", f"torn, or of another version: {', '.join(torn)}", OLD_RUN)
    failed = sorted(path.name for path in folder.glob("*.failed.ipynb"))
    if failed:
        yield Finding(name, "note", f"a notebook failed: {', '.join(failed)}", "its last cell says why; then run again")
    elif not (folder / "trace.json").is_file() and any(folder.glob("step*.ipynb")):
        # without notebooks it is what scoring or calibration needed of a feature, and no run
        done = sum((folder / f"step{step}.json").is_file() for step in STEPS)
        yield Finding(name, "note", f"stopped after {done} of {STEPS[-1]} steps", OLD_RUN)
    if scraps := list(folder.glob(".*.tmp")):
        yield Finding(name, "note", f"{len(scraps)} files that were being written when it was stopped", "delete them")


def _is_torn(path: Path, schema: type[BaseModel]) -> bool:
    try:
        schema.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return False
    except (OSError, ValidationError):
        return True
    return False


def _evidence() -> Iterator[Finding]:
    from mikit.evidence.store import DamagedEvidence, check_store

    for folder in sorted(path for path in (paths.outputs() / "evidence").glob("*") if path.is_dir()):
        if folder.name.startswith("."):
            made = folder.name.strip(".").removesuffix(".unfinished")
            yield Finding(f"evidence {made}", "note", "a scan was stopped", "the same run or scan goes on where it was")
            continue
        try:
            check_store(folder)
            yield Finding(f"evidence {folder.name}", "ok", "every file is what was written")
        except DamagedEvidence as fault:
            detail = str(fault).split(": ", 1)[1].split(": delete")[0]
            yield Finding(f"evidence {folder.name}", "note", detail, "it is made again when it is next needed")
