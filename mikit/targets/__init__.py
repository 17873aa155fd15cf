"""What is explained: a language model and an SAE on one of its hook points, by name."""

import importlib

from mikit import paths
from mikit.errors import BadInput, one_of
from mikit.targets.base import LanguageModel, Target

NAMES = ("planted", "smollm2-135m")

__all__ = ["NAMES", "LanguageModel", "Target", "load_target"]


def load_target(
    name: str, layer: int | None = None, planted_spec: str | None = None, planted_seed: int | None = None
) -> Target:
    """The target of that name, at that layer or at its own.

    Args:
        name: one of `NAMES`.
        layer: block whose output is the hook point.
        planted_spec: file that says what is planted, for `planted`.
        planted_seed: seed of `planted`; the spec's own if None.

    Raises:
        BadInput: unknown name, a layer without an SAE, or weights that are not installed.
    """
    if name not in NAMES:
        raise one_of("model", name, list(NAMES))
    module = importlib.import_module(f"mikit.targets.{name.split('-')[0]}")
    if layer is not None and layer != module.LAYER:
        raise BadInput(f"{name} has no SAE at layer {layer!r}: valid: {module.LAYER}")
    if name == "planted":
        return _planted(planted_spec, planted_seed)
    target: Target = module.load()
    return target


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
