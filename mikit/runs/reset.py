"""What a notebook leaves behind in its kernel, taken back before the next one starts. This runs inside the kernel.

Names, tracebacks, figures, random states, folder, environment, paths, warnings and hooks on a loaded model are put back;
models, SAEs and evidence that the library keeps stay loaded, with what it measured on them. What can't be put back for certain is told instead: a
patched library, altered weights, a thread that goes on, a child process, an interpreter about to exit. The kernel is
then given up.
"""

import builtins
import gc
import logging
import os
import random
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TORCH_SEED = 67280421310721
"""With which torch starts in every new process."""
STREAMS = ("stdout", "stderr", "stdin", "displayhook", "excepthook", "unraisablehook")
LASTING_THREADS = {"TMonitor", "ZMQbg", "ThreadPoolExecutor"}
"""Classes of threads, or beginnings of their names, that libraries keep for the life of a process."""
SHELLS_OWN = {"builtins.input", "getpass.getpass", *(f"sys.{name}" for name in STREAMS)}
"""What the shell puts another object in place of with each cell, or what is put back anyway."""
CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


@dataclass
class Before:
    """The state that every notebook of this kernel starts from."""

    environment: dict[str, str]
    path: list[str]
    filters: list[Any]
    streams: dict[str, Any]
    handlers: list[logging.Handler]
    level: int
    umask: int
    recursion: int
    threads: set[int | None]
    torch_threads: int | None
    packages: set[str]
    """That were loaded."""
    modules: dict[str, dict[str, Any]]
    """By module, its functions and classes by name, those of its classes with a dot."""
    hooks: set[tuple[int, int]]
    """Of loaded models, by module and number: transformers has some of its own."""


_before: Before | None = None


def remember() -> int:
    """Take the present state as the one that notebooks start from.

    Returns:
        Memory of this process, in bytes.
    """
    global _before
    torch = sys.modules.get("torch")
    _forget_names()
    gc.collect()
    # what is loaded by now stays: a later collection need not look at it
    gc.freeze()
    _before = Before(
        environment=dict(os.environ),
        path=list(sys.path),
        filters=list(warnings.filters),
        streams={name: getattr(sys, name) for name in STREAMS},
        handlers=list(logging.getLogger().handlers),
        level=logging.getLogger().level,
        umask=_umask(),
        recursion=sys.getrecursionlimit(),
        threads={thread.ident for thread in threading.enumerate()},
        torch_threads=torch.get_num_threads() if torch else None,
        packages={name.partition(".")[0] for name in sys.modules},
        modules={name: _code_of(module) for name, module in list(sys.modules.items()) if _is_watched(name, module)},
        hooks={(id(module), number) for target in _targets() for module, number, _, _ in _hooks(target.model)},
    )
    return memory()


def restore(folder: str) -> dict[str, Any]:
    """Put back what can be put back.

    Args:
        folder: the current folder of the next notebook.

    Returns:
        `recycle`: why this kernel should not be used again, or None; `memory`: of this process, in bytes.
    """
    assert _before is not None, "a state is remembered when the kernel starts"
    found = next(_unmendable(_before), None)
    if found is None:
        _put_back(_before, folder)
        _forget_names()
        _free()
        for name, module in list(sys.modules.items()):
            if name not in _before.modules and _is_watched(name, module):
                _before.modules[name] = _code_of(module)
        _before.packages = {name.partition(".")[0] for name in sys.modules}
    return {"recycle": found, "memory": memory()}


def memory() -> int:
    """Memory that this process alone holds, in bytes, with what it holds of a GPU."""
    status = Path("/proc/self/statm")
    torch = sys.modules.get("torch")
    on_device = torch.cuda.memory_allocated() if torch and torch.cuda.is_initialized() else 0
    if not status.exists():
        import psutil

        return psutil.Process().memory_info().rss + on_device
    _, resident, shared, *_ = (int(word) for word in status.read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") + on_device


# --- what can't be put back ---


def _unmendable(before: Before) -> Iterator[str]:
    shell = _shell()
    if shell.exit_now:
        yield "the notebook asked the kernel to exit"
    going_on = [thread.name for thread in threading.enumerate() if _is_left(thread, before)]
    if going_on:
        yield f"a thread of the notebook goes on: {going_on[0]}"
    if children := _children():
        yield f"a process of the notebook goes on: {children[0]}"
    names = shell.user_module.__dict__
    for module_name, code in before.modules.items():
        module = sys.modules.get(module_name)
        own = module_name.partition(".")[0]
        if module is None:
            yield f"the module {module_name} was taken away"
            continue
        now = _code_of(module)
        if now != code:
            changed = [
                name for name, old in code.items() if now.get(name) is not old and _is_patch(now.get(name), own, before)
            ]
            # what was added to builtins is taken away
            added = [name for name in now.keys() - code.keys() if _is_from(now[name], names) and own != "builtins"]
            for name in sorted([*changed, *added])[:1]:
                yield f"{module_name}.{name} was patched"
            before.modules[module_name] = {name: now[name] for name in now if own != "builtins" or name in code}
    for module_name, module in list(sys.modules.items()):
        if module_name not in before.modules and _is_watched(module_name, module):
            for name, value in _code_of(module).items():
                if _is_from(value, names):
                    yield f"{module_name}.{name} was patched"
    for target in _targets():
        if _as_loaded(target) != _fingerprint(target):
            yield f"the weights or modules of {target.name} were changed"


def _is_patch(value: Any, own: str, before: Before) -> bool:
    """Whether what a package now has in an old place was put there by a notebook.

    Packages change themselves as they are used, and others as they are imported: torch patches `inspect`.

    Args:
        value: the new one; None for one that was taken away.
        own: the package.
        before: tells which packages were loaded before.
    """
    if own == "sys":
        return False
    source = getattr(value, "__module__", None) or ""
    top = source.partition(".")[0]
    # matplotlib_inline serves matplotlib
    related = top.startswith(own) or own.startswith(top)
    return source == "__main__" or value is None or (not related and top in before.packages)


def _is_left(thread: threading.Thread, before: Before) -> bool:
    lasting = type(thread).__name__ in LASTING_THREADS or thread.name.startswith(tuple(LASTING_THREADS))
    # ipykernel's own come with the first message of a kind
    ours = (type(thread).__module__ or "").startswith(("ipykernel", "IPython", "zmq", "tqdm", "tornado"))
    return thread.is_alive() and thread.ident not in before.threads and not lasting and not ours


def _children() -> list[str]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    try:
        pids = listed.read_text().split()
    except OSError:
        return []
    found = []
    for pid in pids:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
        # multiprocessing's own helpers outlive what they help; a zombie has no command line
        if line and "multiprocessing.resource_tracker" not in line:
            found.append(line[:80])
    return found


def _is_watched(name: str, module: Any) -> bool:
    return isinstance(module, types.ModuleType) and name not in ("__main__", "__mp_main__", __name__)


def _code_of(module: types.ModuleType) -> dict[str, Any]:
    """A module's functions and classes, and the functions of the classes that are its own."""
    code = {}
    own = module.__name__
    for name, value in list(module.__dict__.items()):
        # isinstance would ask deprecated aliases for their class, and they would warn
        if issubclass(type(value), CODE) and f"{own}.{name}" not in SHELLS_OWN:
            code[name] = value
            if issubclass(type(value), type) and value.__module__ == own:
                for inner, member in list(vars(value).items()):
                    if type(member) is types.FunctionType:
                        code[f"{name}.{inner}"] = member
    return code


def _is_from(value: Any, names: Mapping[str, Any]) -> bool:
    """Whether a function or class was defined in the notebook."""
    value = getattr(value, "__func__", value)
    if isinstance(value, type):
        return value.__module__ == "__main__"
    return getattr(value, "__globals__", None) is names


def _targets() -> list[Any]:
    """The targets that the library keeps loaded in this process."""
    runs = sys.modules.get("mikit.runs.run")
    return runs.loaded_targets() if runs else []


def _as_loaded(target: Any) -> tuple[Any, ...]:
    return sys.modules["mikit.runs.run"].as_loaded(target)


def _fingerprint(target: Any) -> tuple[Any, ...]:
    # not above: a kernel in which no target is loaded need not have torch
    from mikit.targets.state import fingerprint

    return fingerprint(target)


def _hooks(model: Any) -> Iterator[tuple[Any, int, Any, dict[int, Any]]]:
    from mikit.targets.state import hooks_of

    return hooks_of(model)


# --- what can ---


def _put_back(before: Before, folder: str) -> None:
    os.chdir(folder)
    if dict(os.environ) != before.environment:
        os.environ.clear()
        os.environ.update(before.environment)
    sys.path[:] = before.path
    filters: Any = warnings.filters
    filters[:] = before.filters
    # tells the warnings module that its list is another
    getattr(warnings, "_filters_mutated", lambda: None)()
    for name, value in before.streams.items():
        setattr(sys, name, value)
    logging.getLogger().handlers[:] = before.handlers
    logging.getLogger().setLevel(before.level)
    logging.disable(logging.NOTSET)
    os.umask(before.umask)
    sys.setrecursionlimit(before.recursion)
    gc.enable()
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
    _put_back_libraries(before)
    for target in _targets():
        remove_hooks(target.model, before.hooks)


def _put_back_libraries(before: Before) -> None:
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
        numpy.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
        numpy.set_printoptions(edgeitems=3, threshold=1000, precision=8, suppress=False, linewidth=75)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(TORCH_SEED)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)
        if before.torch_threads is None:
            before.torch_threads = int(os.environ.get("OMP_NUM_THREADS") or torch.get_num_threads())
        if torch.get_num_threads() != before.torch_threads:
            torch.set_num_threads(before.torch_threads)
    if matplotlib := sys.modules.get("matplotlib"):
        if pyplot := sys.modules.get("matplotlib.pyplot"):
            pyplot.close("all")
        if any(matplotlib.rcParams[name] != value for name, value in matplotlib.rcParamsOrig.items()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                matplotlib.rc_file_defaults()


def remove_hooks(model: Any, kept: set[tuple[int, int]]) -> int:
    """Take hooks off a model's modules; the library's own never outlive the reading that they serve.

    Args:
        model: a torch module.
        kept: hooks that stay, by identity of the module and number; those of transformers stay as well.

    Returns:
        How many were taken off.
    """
    removed = 0
    for module, number, function, held in _hooks(model):
        if (id(module), number) not in kept and not (getattr(function, "__module__", "") or "").startswith(
            "transformers"
        ):
            del held[number]
            removed += 1
    return removed


def _forget_names() -> None:
    shell = _shell()
    names = shell.user_module.__dict__
    for event, callbacks in shell.events.callbacks.items():
        shell.events.callbacks[event] = [callback for callback in callbacks if not _is_from(callback, names)]
    for transformers in (shell.input_transformers_cleanup, shell.input_transformers_post, shell.ast_transformers):
        transformers[:] = [
            each for each in transformers if not _is_from(each, names) and type(each).__module__ != "__main__"
        ]
    if shell.custom_exceptions:
        shell.set_custom_exc((), None)
    for name in set(vars(builtins)):
        if _is_from(getattr(builtins, name), names):
            delattr(builtins, name)
    shell.reset(new_session=True, aggressive=False)
    for name in ("last_traceback", "last_value", "last_type", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    shell.InteractiveTB.tb = None


def _free() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        import ctypes

        # what was freed in small pieces goes back to the system, so that growth is what is held
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim:
            trim(0)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    return get_ipython()
