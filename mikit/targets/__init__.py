"""What is explained: a language model and an SAE on one of its hook points, by name."""

import importlib

from mikit.errors import BadInput, one_of
from mikit.targets.base import LanguageModel, Target

NAMES = ("planted", "smollm2-135m")

__all__ = ["NAMES", "LanguageModel", "Target", "load_target"]


def load_target(name: str, layer: int | None = None) -> Target:
    """The target of that name, at that layer or at its own.

    Raises:
        BadInput: unknown name, a layer without an SAE, or weights that are not installed.
    """
    if name not in NAMES:
        raise one_of("model", name, list(NAMES))
    module = importlib.import_module(f"mikit.targets.{name.split('-')[0]}")
    if layer is not None and layer != module.LAYER:
        raise BadInput(f"{name} has no SAE at layer {layer!r}: valid: {module.LAYER}")
    target: Target = module.load()
    return target
