"""What is explained: a language model and an SAE on one of its hook points, by name."""

import contextlib
from collections.abc import Iterator

from mikit import paths
from mikit.errors import BadInput, one_of
from mikit.progress import working
from mikit.targets.base import LanguageModel, Target
from mikit.targets.options import Options

NAMES = ("planted", "smollm2-135m")
"""Targets that bring everything they need."""
OTHERS = ("gemma-2-2b", "a hub id (owner/name)", "a transformers folder")

__all__ = ["NAMES", "LanguageModel", "Options", "Target", "load_target"]


def load_target(name: str, layer: int | None = None, options: Options | None = None) -> Target:
    """The target of that name, at that layer or at its own.

    Args:
        name: one of `NAMES`, a transformers folder, a hub id, or a Gemma model's short name.
        layer: the block whose output is the hook point; the target's or the SAE's own if None.
        options: which SAE, which device, which precision.

    Raises:
        BadInput: unknown name, a layer without an SAE, weights that are not installed, or an SAE that does not fit.
    """
    with working(f"loading {name}"), contextlib.nullcontext() if name == "planted" else _without_bars():
        return _load(name, layer, options or Options())


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Keep transformers' own bars, one for each part of a model, out of what is shown: a line says what is loaded."""
    from transformers.utils import logging as shown

    was_on = shown.is_progress_bar_enabled()
    shown.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            shown.enable_progress_bar()


def _load(name: str, layer: int | None, options: Options) -> Target:
    if name not in NAMES:
        from mikit.targets import pretrained

        if not pretrained.is_known(name):
            raise one_of("model", name, [*NAMES, *OTHERS])
        return pretrained.load(name, layer, options)
    if name == "smollm2-135m":
        from mikit.targets import smollm2

        return smollm2.load(layer, options)
    if options.sae or options.device not in ("auto", "cpu") or options.dtype not in ("auto", "float32"):
        raise BadInput(
            "planted brings its SAE and runs on the CPU in float32: valid: sae unset, device cpu, dtype float32"
        )
    from mikit.targets.planted import LAYER

    if layer is not None and layer != LAYER:
        raise BadInput(f"{name} has no SAE at layer {layer!r}: valid: {LAYER}")
    return _planted(options.planted_spec, options.planted_seed)


def _planted(spec: str | None, seed: int | None) -> Target:
    """The planted model of a spec file, or of the spec that ships here.

    Raises:
        BadInput: there is no such file, or it has a fault.
    """
    from mikit.targets.planted import load
    from mikit.targets.planted.spec import DEFAULT

    path = paths.existing(spec) if spec else None
    if spec and path is None:
        raise BadInput(f"planted_spec: there is no file {spec}: valid: a YAML file like {DEFAULT}")
    return load(path, seed)
