"""Who may know whom in the library, what stays out of it, and what importing it costs."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import mikit

PACKAGE = Path(mikit.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

FOUNDATION = {
    "errors",
    "files",
    "frames",
    "frontend",
    "paths",
    "progress",
    "settings",
    "settings_sources",
    "strict_yaml",
    "trace",
}
"""Known to everybody, and knowing only each other."""
KNOWS = {
    "targets": {"targets"},
    "evidence": {"evidence", "targets"},
    # never the store of evidence: a writer sees what it is shown
    "explainers": {"explainers", "evidence.vocabulary", "evidence.corpora", "llm"},
    "experiments": {"experiments", "explainers", "evidence", "targets"},
    "gates": {"experiments.statistics"},
    "refine": {"gates", "experiments.statistics", "explainers.base"},
    "llm": {"llm"},
    "viz": {"viz"},
    "widgets": {"widgets", "viz", "runs", "experiments", "evidence", "targets"},
    "calibration": {"calibration", "runs", "gates", "experiments", "explainers", "evidence", "targets"},
    "runs": {"runs", "refine", "llm", "gates", "viz", "experiments", "explainers", "evidence", "targets"},
    # four tasks that know nothing of the pipeline, pictures in the house's style
    "tasks": {"tasks", "viz.style", "viz.text"},
    # of the tasks a sandbox knows how a model is built, and nothing that could make an instance
    "sandbox": {"sandbox", "tasks.models"},
    "arena": {"arena", "sandbox", "tasks"},
    "cli": {"runs", "evidence", "targets", "tasks", "arena", "sandbox"},
    **{module: set() for module in FOUNDATION},
}
"""What each part of the library may import besides the foundation."""

ONLY = {
    "papermill": "runs/",
    "dask": "runs/",
    "distributed": "runs/",
    "openai": "llm/",
    "openenv": "arena/",
    "sae_lens": "targets/",
}
"""Packages that one place alone imports."""
PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
HEAVY = {"torch", "transformers", "sae_lens", "papermill", "nbformat", "matplotlib", "scipy", "openai", "numpy"}
IMPORT_SECONDS = 0.3


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def place(path: Path) -> str:
    """A file's path inside the package."""
    return path.relative_to(PACKAGE).as_posix()


def part(module: str) -> str:
    """The part of the library that a module below `mikit` belongs to: `evidence.scan` is in `evidence`."""
    return module.split(".")[0]


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def imported(path: Path) -> set[str]:
    """Full names of everything that a file imports, wherever in it; `from a import b` is `a.b`."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{_absolute(path, node)}.{alias.name}" for alias in node.names}
    return names


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ("mikit", *path.relative_to(PACKAGE).parent.parts)
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def module_of(path: Path) -> str:
    """A file's module without the leading `mikit.`; empty for the root."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def own_modules(path: Path) -> set[str]:
    """The modules of this library that a file imports, without the leading `mikit.`: of `mikit.a.b.name`, `a.b`."""
    modules = {module_of(file) for file in FILES}
    names = {name.removeprefix("mikit.") for name in imported(path) if name.startswith("mikit.")}
    return {name if name in modules else name.rpartition(".")[0] for name in names}


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


def allowed(module: str, known: set[str]) -> bool:
    return (
        not module
        or part(module) in FOUNDATION
        or any(module == name or module.startswith(f"{name}.") for name in known)
    )


@pytest.mark.parametrize("path", [path for path in FILES if module_of(path)], ids=place)
def test_a_module_knows_only_what_its_part_may_know(path):
    own = part(module_of(path))
    assert own in KNOWS, f"mikit.{own} has no place in the order of knowledge: give it a row in KNOWS"
    assert {name for name in own_modules(path) if not allowed(name, KNOWS[own])} == set()


@pytest.mark.parametrize("package, home", ONLY.items())
def test_a_package_is_imported_in_its_one_place_alone(package, home):
    assert [place(path) for path in FILES if package in packages(path) and not place(path).startswith(home)] == []


def test_nothing_that_a_run_calls_knows_the_planted_truth():
    truth = "targets.planted.truth"
    knowing = [place(path) for path in FILES if truth in own_modules(path)]
    assert [where for where in knowing if not where.startswith("calibration/")] == []
    users = [place(path) for path in FILES if any(part(name) == "calibration" for name in own_modules(path))]
    assert [where for where in users if not where.startswith("calibration/")] == []


def test_nothing_is_pickled():
    assert [place(path) for path in FILES if packages(path) & PICKLES] == []


def test_torch_and_numpy_load_nothing_that_runs_code():
    faults = []
    for path in FILES:
        for name, call in calls(path):
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            unsafe = (
                name == "torch.save"
                or (name == "torch.load" and options.get("weights_only") != "True")
                or options.get("allow_pickle") == "True"
            )
            faults += [f"{place(path)}:{call.lineno} {name}"] * unsafe
    assert faults == []


def test_the_library_does_not_print():
    prints = [f"{place(path)}:{c.lineno}" for path in FILES for name, c in calls(path) if name == "print"]
    assert [where for where in prints if not where.startswith("cli.py:")] == []


PROBE = """
import json, sys, time
started = time.process_time()
import mikit
print(json.dumps([time.process_time() - started, sorted({name.split(".")[0] for name in sys.modules})]))
"""


def _import_mikit() -> tuple[float, list[str]]:
    seconds, modules = json.loads(subprocess.check_output([sys.executable, "-c", PROBE], text=True))
    return seconds, modules


def test_importing_mikit_is_light():
    """Processor time, best of three: what else the machine does, and a first compilation, do not count."""
    runs = [_import_mikit() for _ in range(3)]
    assert min(seconds for seconds, _ in runs) < IMPORT_SECONDS
    assert HEAVY & set(runs[0][1]) == set()
