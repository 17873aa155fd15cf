"""How a worker locks itself in, at which level, and how it is found out what this machine can do.

`full`: Landlock and seccomp. `no-landlock`: seccomp alone, and files cannot be opened at all, so that only what was imported
before can be imported. `none`: neither; the code can do whatever this user can.
"""

import ctypes
import os
import resource
import signal
import struct
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from mikit.sandbox import calls, landlock
from mikit.sandbox.limits import Limits

Level = Literal["full", "no-landlock", "none"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the strictest."""

PACKAGES = [
    "torch",
    "torchgen",
    "functorch",
    "numpy",
    "numpy.libs",
    "scipy",
    "scipy.libs",
    "sympy",
    "mpmath",
    "networkx",
    "einops",
    "jaxtyping",
    "pandas",
    "IPython",
    "ipykernel",
    "traitlets",
    "stack_data",
    "executing",
    "asttokens",
    "pure_eval",
    "pygments",
    "decorator",
    "jedi",
    "parso",
    "prompt_toolkit",
    "wcwidth",
    "matplotlib_inline",
    "typing_extensions",
    "six",
    "dateutil",
    "comm",
    "zmq",
    "pyzmq.libs",
    "tornado",
    "jupyter_client",
    "jupyter_core",
    "psutil",
    "platformdirs",
    "jinja2",
    "markupsafe",
    "filelock",
    "fsspec",
    "packaging",
    "opt_einsum",
    "sklearn",
]
"""What a worker may import later on. Nothing of mikit: who could import the generators could make the truth of a known seed."""
LIBRARIES = ("/lib64", "/usr/lib64", f"/usr/lib/{os.uname().machine}-linux-gnu")
NOT_STANDARD = {"site-packages", "dist-packages"}
FIRST_USER = 61_000
"""Users that no system account has: as root, each worker becomes one of them."""
USERS = 4_096
CAPABILITIES = 0x20080522
"""Version of the interface, see capset(2)."""
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4

_libc = ctypes.CDLL(None, use_errno=True)


def readable() -> list[Path]:
    """What a worker may read: the standard library, some packages, and shared libraries."""
    found = [entry for entry in _standard().iterdir() if entry.name not in NOT_STANDARD]
    found += [place / name for place in _places() for package in PACKAGES for name in (package, f"{package}.py")]
    return [path for path in [*found, *map(Path, LIBRARIES)] if path.exists()]


def listable() -> list[Path]:
    """Where a worker may read the names, though not what bears them: importing a module looks for it in a list of names."""
    return [_standard(), *_places()]


def _standard() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _places() -> list[Path]:
    return sorted({Path(place) for place in sys.path if place.endswith("-packages")})


def not_dumpable() -> None:
    """Keep other processes of this user from reading this one's memory, environment and open files through /proc."""
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_with_parent() -> None:
    """Be killed when the parent ends, however it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def address_space() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def confine(level: Level, limits: Limits, number: int, ruleset: int | None, kernel: bool = False) -> None:
    """Lock this process in, for good.

    Args:
        level: how.
        limits: what it may use.
        number: of the worker, counted up; chooses its user and its processor.
        ruleset: of Landlock, for the level `full`.
        kernel: whether it will be a Jupyter kernel, with threads and sockets.

    Raises:
        OSError: something that the level promises is refused.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    _limit(limits, kernel)
    if os.geteuid() == 0 and level != "none":
        _give_up_root(FIRST_USER + number % USERS, kernel)
    die_with_parent()
    not_dumpable()
    made = calls.make_filter(open_files=level == "full", kernel=kernel) if level != "none" else None
    landlock.no_new_privileges()
    if level == "full":
        assert ruleset is not None
        landlock.restrict_self(ruleset)
        os.close(ruleset)
    if made is not None:
        made.load()


def _give_up_root(user: int, kernel: bool) -> None:
    """Become a user of one's own; or, where only root may read Python's files, stay root without any capability."""
    os.setgroups([])
    if all(_open_to_all(path) for path in (_standard(), *_places())):
        resource.setrlimit(resource.RLIMIT_NPROC, (64, 64) if kernel else (1, 1))
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header, nothing = struct.pack("=Ii", CAPABILITIES, 0), bytes(24)
    if _libc.capset(header, nothing):
        raise OSError(ctypes.get_errno(), "capset")


def _open_to_all(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))


def _limit(limits: Limits, kernel: bool) -> None:
    memory = address_space() + limits.memory_bytes
    for name, value in {
        "AS": memory,
        "CPU": limits.cpu_s,
        "FSIZE": 0,
        "CORE": 0,
        "NOFILE": limits.open_files * (4 if kernel else 1),
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
    }.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
