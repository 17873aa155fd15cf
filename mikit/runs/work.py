"""What a worker of a sweep does: one feature at a time in its own warm kernel. In a thread here, or anywhere by Dask.

Jobs and outcomes are plain mappings, since they travel between processes and machines.
"""

import atexit
import json
import logging
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mikit.errors import MikitError, RunIsBusy, Stopped
from mikit.paths import HOST_VARIABLE
from mikit.runs.engine import PREFLIGHT, Manner, run_pipeline
from mikit.runs.host_keeper import HostKeeper
from mikit.runs.kernel import Keeper
from mikit.settings import make_params

log = logging.getLogger(__name__)
WAIT_SECONDS = 2.0
"""Between two looks at a run that another process holds."""
CHOOSE = "__import__('mikit.runs.prepare', fromlist=['*']).prepare({params!r}, {features!r})"

_mine = threading.local()
_keepers: list[Keeper] = []
_hosts: dict[int, HostKeeper] = {}
"""By number among those of this machine."""
_slots = threading.Lock()


def run_feature(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the pipeline on one feature.

    Args:
        job: `params`, `environment` and `growth_mib` of the kernel, number of model `hosts` to share, `logs` folder,
            `stop` file, `repeats`, `cell_seconds`, `notebooks` folder or None, `preflight` code, and whether to `wait`
            for a run that another process holds.

    Returns:
        `state` done, failed, busy or stopped; `seconds`; `step` and `cause` of a failure.
    """
    started = time.monotonic()
    stop = Path(job["stop"])
    outcome: dict[str, Any] = {"state": "done", "step": None, "cause": None}
    try:
        keeper = _keeper(job)
        manner = Manner(
            keeper=keeper,
            repeats=job["repeats"],
            cell_seconds=job["cell_seconds"],
            is_told=False,
            should_stop=stop.exists,
        )
        _run(job, manner)
    except Stopped:
        outcome["state"] = "stopped"
    except RunIsBusy as busy:
        outcome |= {"state": "busy", "cause": str(busy)}
    except MikitError as error:
        outcome |= {"state": "failed", "step": error.step, "cause": error.cause or _line(str(error))}
    except Exception as error:
        # a full disk, a fault of ours: this feature fails, and the others go on
        outcome |= {"state": "failed", "cause": _line(f"{type(error).__name__}: {error}")}
    if outcome["state"] == "failed" and stop.exists():
        outcome["state"] = "stopped"
    return outcome | {"seconds": time.monotonic() - started}


def _run(job: Mapping[str, Any], manner: Manner) -> None:
    notebooks = Path(job["notebooks"]) if job["notebooks"] else None
    params = make_params(job["params"])
    while True:
        if manner.should_stop():
            raise Stopped("stopped before the first step")
        try:
            run_pipeline(params, notebooks, preflight=job["preflight"], manner=manner)
            return
        except RunIsBusy:
            if not job["wait"]:
                raise
            time.sleep(WAIT_SECONDS)


def prepare(job: Mapping[str, Any]) -> list[int]:
    """Load a layer's target, make its evidence where it is missing, and choose the features: in the kernel.

    Args:
        job: as for `run_feature`, with the `features` that were asked for.

    Raises:
        MikitError: in one line, what is wrong.
    """
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    from mikit.errors import BadInput, StepFailed

    keeper = _keeper(job)
    code = CHOOSE.format(params=json.dumps(job["params"]), features=json.dumps(job["features"]))
    try:
        found = json.loads(keeper.ready().ask(code))
        keeper.remember()
        return found
    except CellExecutionError as error:
        keeper.discard()
        line = _line(error.evalue)
        raise (
            BadInput(line) if error.ename == "BadInput" else StepFailed(f"choosing features: {error.ename}: {line}")
        ) from None
    except DeadKernelError:
        keeper.discard()
        raise StepFailed("choosing features: the kernel died (out of memory?)") from None


def _keeper(job: Mapping[str, Any]) -> Keeper:
    """The kernel of this thread."""
    if getattr(_mine, "process", None) != os.getpid() or _mine.keeper not in _keepers:
        with _slots:
            number = len(_keepers)
            if not _keepers:
                atexit.register(close_all)
            keeper = Keeper(_log_of(job, "kernel", number), _environment(job, number), job["growth_mib"])
            _keepers.append(keeper)
        _mine.keeper, _mine.process = keeper, os.getpid()
    return _mine.keeper


def _log_of(job: Mapping[str, Any], what: str, number: int) -> Path:
    return Path(job["logs"]) / f"{what}-{os.uname().nodename}-{os.getpid()}-{number}.log"


def _environment(job: Mapping[str, Any], number: int) -> dict[str, str]:
    """What a kernel finds in its environment: a GPU of its own, or the model host that it shares with others."""
    name, device = _dask_name(), job["params"].get("device", "auto")
    place = int(name) if name and name.isdigit() else number
    if not job["hosts"]:
        return job["environment"] | gpu_environment(place, device)
    # a worker of Dask is a process, with one host of its own
    place = place if name and name.isdigit() else 0 if name else number % job["hosts"]
    if place not in _hosts:
        environment = job["environment"] | gpu_environment(place, device)
        _hosts[place] = HostKeeper(_log_of(job, "host", place), environment)
    return threads("1") | {"CUDA_VISIBLE_DEVICES": "", HOST_VARIABLE: str(_hosts[place].address)}


def _dask_name() -> str | None:
    """The name of the Dask worker that this is, if it is one; local ones are named by number."""
    try:
        from distributed import get_worker

        return str(get_worker().name)
    except (ImportError, ValueError):
        return None


def threads(number: str) -> dict[str, str]:
    """How many threads a process computes with, under every name that counts: Dask sets some of them for its workers."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), number)


def gpu_environment(slot: int, device: str) -> dict[str, str]:
    """One GPU for a worker, in turn, where there are several; nothing where there is none to choose."""
    gpus = visible_gpus() if device in ("auto", "cuda") else []
    return {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if len(gpus) > 1 else {}


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` takes them."""
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is not None:
        return [name.strip() for name in said.split(",") if name.strip() and name.strip() != "-1"]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]


def kill_all() -> None:
    """Kill every kernel of this process at once; the threads that wait for them see them die."""
    for keeper in _keepers:
        keeper.kill()


def close_all() -> None:
    """End every kernel and model host of this process."""
    while _keepers:
        keeper = _keepers.pop()
        keeper.kill()
        try:
            keeper.discard()
        except Exception as error:
            # its event loop belongs to a thread that is gone; the process itself is dead
            log.debug("a kernel's channels were not closed: %s", error)
    while _hosts:
        _hosts.popitem()[1].close()


def kernels() -> list[Keeper]:
    """Of this process."""
    return list(_keepers)


def hosts() -> list[HostKeeper]:
    """Of this process."""
    return list(_hosts.values())


def _line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def job_of(
    params: Mapping[str, Any], environment: Mapping[str, str], folder: Path, *, repeats: int, cell_seconds: float | None,
    growth_mib: float, notebooks: Path | None, preflight: str = PREFLIGHT, wait: bool = False, hosts: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """A job, as `run_feature` takes it."""
    return {
        "params": dict(params),
        "environment": dict(environment),
        "logs": str(folder / "logs"),
        "stop": str(folder / ".stop"),
        "repeats": repeats,
        "cell_seconds": cell_seconds,
        "growth_mib": growth_mib,
        "notebooks": str(notebooks) if notebooks else None,
        "preflight": preflight,
        "wait": wait,
        "hosts": hosts,
    }
