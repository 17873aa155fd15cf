"""Finding an SAE below `SAE_ROOT`, a folder laid out as the Gemma Scope releases are.

Gemma Scope: `layer_12/width_16k/average_l0_82/params.npz`. Gemma Scope 2:
`resid_post/layer_12_width_16k_l0_medium/params.safetensors`, with the L0 in its `config.json`.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from mikit.errors import BadInput

CANONICAL_L0 = {"params.npz": 100, "params.safetensors": 60}
"""The canonical SAE of a layer and width is the one whose L0 is nearest; so are all 148 canonical ids of the Gemma 2
releases, and Gemma Scope 2 calls about 60 `medium`."""
UNITS = {"k": 10**3, "m": 10**6}
LAYER = re.compile(r"layer_(\d+)")
WIDTH = re.compile(r"width_(\d+[km])")
L0 = re.compile(r"average_l0_(\d+)")
SECOND = re.compile(r"layer_(\d+)_width_(\d+[km])_l0_(\w+)")


@dataclass(frozen=True)
class Found:
    """One SAE in the tree."""

    layer: int
    width: str
    l0: int
    folder: Path
    file: str

    def distance(self, layer: int, width: str, l0: int | None) -> tuple[int, float, int]:
        """How far it is from what is asked for: in layer, then in width, then in L0."""
        wanted = CANONICAL_L0[self.file] if l0 is None else l0
        ratio = latents(self.width) / latents(width)
        return abs(self.layer - layer), max(ratio, 1 / ratio), abs(self.l0 - wanted)


def latents(width: str) -> int:
    """About how many latents a width has: `16k`, `1m`."""
    return int(width[:-1]) * UNITS[width[-1]]


def saes_below(root: Path) -> list[Found]:
    """Every SAE on the residual stream in a tree, or in the one release on the residual stream that lies in it."""
    found = [*_first_release(root), *_second_release(root)]
    if not found:
        releases = sorted(path for path in root.glob("gemma-scope*") if path.is_dir())
        stream = [path for path in releases if path.name.endswith("-res") or "scope-2-" in path.name]
        if len(stream) > 1:
            names = ", ".join(path.name for path in stream)
            raise BadInput(f"{root} holds several releases: name one of them in sae_root: {names}")
        found = saes_below(stream[0]) if stream else []
    return found


def _first_release(root: Path) -> list[Found]:
    found = []
    for path in sorted(root.glob("layer_*/width_*/average_l0_*/params.npz")):
        layer, width, l0 = (
            pattern.fullmatch(part) for pattern, part in zip((LAYER, WIDTH, L0), path.parts[-4:-1], strict=True)
        )
        if layer and width and l0:
            found.append(Found(int(layer[1]), width[1], int(l0[1]), path.parent, path.name))
    return found


def _second_release(root: Path) -> list[Found]:
    found = []
    for place in ("", "resid_post", "resid_post_all"):
        for path in sorted((root / place).glob("layer_*_width_*_l0_*/params.safetensors")):
            match = SECOND.fullmatch(path.parent.name)
            if match and (l0 := _l0_of(path.parent / "config.json")) is not None:
                found.append(Found(int(match[1]), match[2], l0, path.parent, path.name))
    return found


def _l0_of(config: Path) -> int | None:
    try:
        value = json.loads(config.read_text("utf-8")).get("l0")
    except (OSError, ValueError, AttributeError):
        return None
    return int(value) if isinstance(value, int | float) else None


def find_sae(root: Path, layer: int, width: str = "16k", l0: int | None = None) -> Path:
    """The folder of an SAE.

    Args:
        root: a release's folder, or one that holds it.
        layer: the block.
        width: as the folders write it.
        l0: average L0; the canonical one if None.

    Raises:
        BadInput: there is none; the line names the nearest folder that there is.
    """
    found = saes_below(root)
    if not found:
        raise BadInput(
            f"no SAE below {root}: valid: a folder with layer_L/width_W/average_l0_N/params.npz, as in Gemma Scope"
        )
    nearest = min(found, key=lambda sae: sae.distance(layer, width, l0))
    fits = (nearest.layer, nearest.width) == (layer, width) and l0 in (None, nearest.l0)
    if not fits:
        asked = f"layer {layer}, width {width}" + ("" if l0 is None else f", average L0 {l0}")
        nearer = f"sae_width={nearest.width} sae_l0={nearest.l0}"
        raise BadInput(
            f"no SAE for {asked} below {root}: the nearest is {nearest.folder} (layer={nearest.layer} {nearer})"
        )
    return nearest.folder
