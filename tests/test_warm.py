"""Warm kernels: what one notebook leaves behind changes nothing in the next, and a lost kernel costs one notebook."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from mikit import paths
from mikit.runs.kernel import Keeper

LEAKS = {
    "names": "left_over = 1",
    "environment": "import os; os.environ['LEFT'] = 'over'; os.environ.pop('HOME', None)",
    "folder": "import os; os.chdir('/')",
    "path": "import sys; sys.path.insert(0, '/nowhere')",
    "warnings": "import warnings; warnings.simplefilter('error')",
    "random state": "import random; random.seed(1)",
    "standard output": "import sys, io; sys.stdout = io.StringIO()",
    "a filter of the shell": "get_ipython().events.register('pre_run_cell', lambda *_: 1 / 0)",
    "a builtin": "import builtins; builtins.left_builtin = lambda: 1",
    "logging": "import logging; logging.disable(logging.CRITICAL); logging.getLogger().setLevel(1)",
}
"""What is put back in the same kernel."""
FATAL = {
    "a patched library": "import json; json.dumps = lambda *_: 'patched'",
    "a library patched by another's function": "import json, math; json.loads = math.floor",
    "a patched method": "import fractions; fractions.Fraction.__repr__ = lambda self: 'patched'",
    "a cell transformer": "get_ipython().input_transformers_post.append(lambda lines: ['1/0'])",
    "a thread": "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "a process": "import subprocess; subprocess.Popen(['sleep', '600'])",
    "a wish to exit": "exit()",
    "a death": "import os; os._exit(3)",
    "memory": "import sys; sys.hoard = b'x' * (300 << 20)",
}
"""What the kernel is given up for."""
LOOK = """
import builtins, fractions, json, logging, os, random, sys, threading, warnings
state = {
    "names": "left_over" in dir(), "environment": [os.environ.get("LEFT"), "HOME" in os.environ], "folder": os.getcwd(),
    "path": sys.path, "filters": len(warnings.filters), "stdout": type(sys.stdout).__name__,
    "events": len(get_ipython().events.callbacks["pre_run_cell"]), "builtin": hasattr(builtins, "left_builtin"),
    "logging": [logging.root.manager.disable, logging.getLogger().level], "dumps": json.dumps.__module__,
    "loads": json.loads.__module__, "fraction": repr(fractions.Fraction(1, 2)), "count": get_ipython().execution_count,
    "threads": sum(t.name.startswith("Thread-") and "sleep" in t.name for t in threading.enumerate()),
    "hoard": hasattr(sys, "hoard"), "tracebacks": hasattr(sys, "last_traceback"),
}
"""


@pytest.fixture(scope="module")
def keeper(tmp_path_factory):
    with Keeper(tmp_path_factory.mktemp("warm") / "kernel.log", growth_mib=100) as keeper:
        yield keeper


def look(keeper) -> tuple[dict, float]:
    kernel = keeper.ready()
    kernel.run(LOOK)
    return json.loads(kernel.ask("__import__('json').dumps(state)")), kernel.ask("random.random()")


@pytest.fixture(scope="module")
def cold(keeper) -> dict:
    """What a kernel that ran nothing shows."""
    keeper.discard()
    return look(keeper)[0]


def run_unheeded(keeper, code: str) -> None:
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    try:
        keeper.ready().run(code)
    except (CellExecutionError, DeadKernelError):
        keeper.discard()


def test_what_a_notebook_leaves_is_put_back_in_the_same_kernel(keeper, cold):
    # another environment, which pytest changes with each test, means another kernel
    keeper.ready()
    started = keeper.started
    for code in LEAKS.values():
        run_unheeded(keeper, code)
    found, drawn = look(keeper)
    assert found == cold
    assert drawn != pytest.approx(0.13436424411240122), "the first number after seed 1"
    assert keeper.started == started


@pytest.mark.slow
@pytest.mark.parametrize("leak", LEAKS)
def test_each_leak_alone_is_put_back(keeper, cold, leak):
    run_unheeded(keeper, LEAKS[leak])
    assert look(keeper)[0] == cold


@pytest.mark.parametrize(
    "leak",
    [name if name in ("a patched library", "memory") else pytest.param(name, marks=pytest.mark.slow) for name in FATAL],
)
def test_a_kernel_with_what_cannot_be_put_back_is_given_up(keeper, cold, leak):
    look(keeper)
    look(keeper)
    pid = keeper.pid
    run_unheeded(keeper, FATAL[leak])
    assert look(keeper)[0] == cold
    assert keeper.pid != pid


@pytest.mark.slow
def test_models_figures_and_seeds_are_put_back_and_the_model_stays_loaded(tmp_path):
    with Keeper(tmp_path / "kernel.log") as keeper:
        check_what_is_loaded(keeper)


def check_what_is_loaded(keeper):
    count = "sum('_gone' in str(h) or 'lambda' in str(h) for m in target.model.modules() for h in m._forward_hooks.values())"
    load = "from mikit.runs import open_run; target = open_run(model='planted').target"
    kernel = keeper.ready()
    kernel.run(load)
    first = kernel.ask(f"(lambda: (exec({load!r}, globals()), id(target.model))[1])()")
    keeper.remember()
    pid = keeper.pid
    keeper.ready().run(
        f"{load}\nimport torch, numpy, matplotlib.pyplot as plt\n"
        "target.model.register_forward_hook(lambda *_: 1 / 0); torch.manual_seed(0); torch.set_grad_enabled(False)\n"
        "numpy.random.seed(0); torch.set_default_dtype(torch.float64); plt.rcParams['font.size'] = 99\n"
        "figures = [plt.figure() for _ in range(20)]; torch.set_num_threads(1)"
    )
    kernel = keeper.ready()
    kernel.run(f"{load}\nimport torch, matplotlib.pyplot as plt\nhooks = {count}")
    assert kernel.ask("(hooks, torch.is_grad_enabled(), str(torch.get_default_dtype()), plt.get_fignums())") == (
        0, True, "torch.float32", [],
    )  # fmt: skip
    assert kernel.ask("torch.initial_seed()") == 67280421310721
    assert kernel.ask("plt.rcParams['font.size']") != 99
    assert kernel.ask("id(target.model)") == first and keeper.pid == pid
    kernel.run("with torch.no_grad(): next(target.model.parameters()).data.view(-1)[0] += 1")
    assert keeper.ready() and keeper.pid != pid, "altered weights are seen"
    edits = (
        "next(target.model.parameters()).data.mul_(1.5)",
        "[buffer.mul_(3) for buffer in target.model.buffers()]",
        "object.__setattr__(target.sae, 'normalize', 'layer_norm')",
    )
    for edit in edits:
        pid = keeper.pid
        keeper.ready().run(f"{load}\n{edit}")
        assert keeper.ready() and keeper.pid != pid, f"in the notebook that loads the model, too: {edit}"


# --- through papermill ---


def notebook(path: Path, *cells: str) -> Path:
    written = [nbformat.v4.new_code_cell(source) for source in cells]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=written, metadata=metadata), path)
    return path


@pytest.fixture
def engine():
    """papermill with the engine registered as its entry point would."""
    from papermill.engines import papermill_engines

    from mikit.runs.papermill_engine import _own_keeper
    from mikit.runs.warm import WarmEngine

    papermill_engines.register("warm", WarmEngine)
    return lambda source, out, **options: papermill.execute_notebook(
        str(source), str(out), engine_name="warm", progress_bar=False, **options
    ), _own_keeper()


def statuses(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [cell.metadata.papermill.status for cell in cells if "papermill" in cell.metadata]


def test_a_dead_kernel_is_replaced_and_only_its_notebook_repeated(engine, tmp_path):
    execute, keeper = engine
    flag = tmp_path / "flag"
    code = f"from pathlib import Path\nimport os\nflag = Path({str(flag)!r})\nif not flag.exists():\n flag.touch(); os._exit(1)"
    out = tmp_path / "out.ipynb"
    execute(notebook(tmp_path / "a.ipynb", "1", code, "2"), out, parameters={"x": 1}, execution_timeout=60)
    found = nbformat.read(out, as_version=4)
    assert [cell.execution_count for cell in found.cells] == [1, 2, 3, 4]
    assert statuses(out) == ["completed"] * 4
    assert found.metadata.papermill.exception is None and found.metadata.papermill.duration > 0
    pid = keeper.pid
    execute(notebook(tmp_path / "b.ipynb", "'flag' in dir()"), out)
    assert keeper.pid == pid
    assert nbformat.read(out, as_version=4).cells[0].outputs[0].data["text/plain"] == "False"
    with pytest.raises(PapermillExecutionError, match="CellTimeoutError"):
        execute(notebook(tmp_path / "c.ipynb", "1", "while True: pass", "2"), out, execution_timeout=1, repeats=0)
    assert "An Exception was encountered" in nbformat.read(out, as_version=4).cells[0].source
    assert statuses(out) == ["completed", "failed", "pending"]


@pytest.mark.slow
def test_a_notebook_that_kills_every_kernel_fails_with_papermills_banner(engine, tmp_path):
    execute, _ = engine
    out = tmp_path / "out.ipynb"
    with pytest.raises(PapermillExecutionError, match="DeadKernelError"):
        execute(notebook(tmp_path / "a.ipynb", "1", "import os; os._exit(1)", "2"), out)
    assert "An Exception was encountered" in nbformat.read(out, as_version=4).cells[0].source
    assert statuses(out) == ["completed", "failed", "pending"]


@pytest.mark.slow
def test_plain_papermill_finds_the_engine_by_its_entry_point(tmp_path):
    info = tmp_path / "site" / "warm_engine-1.dist-info"
    info.mkdir(parents=True)
    import tomllib

    declared = tomllib.loads((paths.PROJECT / "pyproject.toml").read_text())["project"]["entry-points"][
        "papermill.engine"
    ]
    (info / "entry_points.txt").write_text(
        "[papermill.engine]\n" + "".join(f"{k} = {v}\n" for k, v in declared.items())
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: warm-engine\nVersion: 1\n")
    source, out = notebook(tmp_path / "a.ipynb", "1 + 1"), tmp_path / "out.ipynb"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}:{paths.PROJECT}"}
    command = [sys.executable, "-m", "papermill", "--engine", "warm", str(source), str(out)]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    assert nbformat.read(out, as_version=4).cells[0].outputs[0].data["text/plain"] == "2"


def test_the_engines_module_imports_nothing_heavy():
    code = "import sys, mikit.runs.warm; print(sorted({'papermill', 'nbformat', 'nbclient', 'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
