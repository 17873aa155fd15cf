"""Which steps of a run are up to date: pure functions on step files.

A step is fresh when what it read and its params are unchanged. What it read is known by hash: of the outputs of each
step before it that it uses, of the evidence, and of the files that the evidence is made from.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from mikit import paths
from mikit.errors import BadInput
from mikit.files import file_hash, fingerprint, value_hash
from mikit.settings import OPERATIONAL, Params
from mikit.trace import StepFile

STEPS = range(1, 10)
READS: Mapping[int, tuple[int, ...]] = {
    1: (),
    2: (1,),
    3: (1, 2),
    4: (1, 2, 3),
    5: (1,),
    6: (1, 5),
    7: (1, 5, 6),
    8: (1, 2, 4, 5, 6, 7),
    9: tuple(range(1, 9)),
}
"""The steps whose outputs each step reads."""

OWN_SAE = ("planted", "smollm2-135m")
"""Models that bring their SAE."""

BUDGET = "budget"
"""Name, among what a step read, of the budget that kept it from asking all that it wanted to."""

ROUNDS = "rounds"
"""Name, among what the last step read, of the rounds of refinement."""

Files = Mapping[int, StepFile]
"""The step files that exist, by step."""


def params_hash(params: Params) -> str:
    """Hash of the parameters that results follow from."""
    return value_hash(params.model_dump(mode="json", exclude=set(OPERATIONAL)))


def sources_hash(params: Params) -> str:
    """Hash of the files that a run reads and does not write: the corpus, where it is the user's, and what ships with the targets."""
    given = paths.existing(params.corpus) if params.corpus else None
    files = sorted(file for file in (paths.PACKAGE / "targets").rglob("*") if file.suffix not in {".py", ".pyc"})
    if given:
        files += paths.texts(given) if given.is_dir() else [given]
    if params.planted_spec and (spec := paths.existing(params.planted_spec)):
        files.append(spec)
    if params.explainer == "llm":
        files += sorted((paths.PACKAGE / "explainers" / "llm" / "prompts").glob("*.md"))
    own = [[file.name, file_hash(file)] for file in files if file.is_file()]
    return value_hash([*own, *([file.name, fingerprint(file)] for file in target_files(params))])


def target_files(params: Params) -> list[Path]:
    """The files of a model and an SAE that lie in folders of the user's: replaced in place, they make a run stale."""
    from mikit.targets.gemma_scope import find_sae

    checkpoints = os.environ.get("SAE_MODEL_CHECKPOINT_PATH") if "gemma" in params.model else None
    below = f"{checkpoints}/{params.model.rpartition('/')[2]}" if checkpoints else None
    given = (params.model, params.sae, checkpoints, below)
    places = [path for name in given if name and (path := paths.existing(name))]
    root = params.sae_root or os.environ.get("SAE_ROOT")
    if root and not params.sae and params.model not in OWN_SAE and (folder := paths.existing(root)):
        with contextlib.suppress(BadInput):
            places.append(find_sae(folder, params.layer, params.sae_width, params.sae_l0))
    found = [file for place in places for file in (sorted(place.iterdir()) if place.is_dir() else [place])]
    return [file for file in found if file.suffix in {".json", ".safetensors", ".npz", ".model"} and file.is_file()]


def budget_of(params: Params) -> str:
    """What may be spent: a step that a budget cut short is done again under another one."""
    return value_hash([params.llm_token_budget, params.llm_money_budget])


def rounds_hash(folder: Path) -> str:
    """Hash of the rounds of refinement and of the calls for them; that of nothing where there are none."""
    files = sorted(folder.glob("*/round.json"), key=lambda path: path.parent.name) + sorted(folder.glob("*.json"))
    return value_hash([[f"{file.parent.name}/{file.name}", file_hash(file)] for file in files])


def inputs_of(step: int, files: Files) -> dict[str, str]:
    """Hash of the outputs of each step that `step` reads, as far as they exist, under `step1`, `step2`, ..."""
    return {f"step{k}": value_hash(files[k].outputs) for k in READS[step] if k in files}


def is_fresh(step: int, files: Files, params: str, outside: Mapping[str, str]) -> bool:
    """Whether a step's file says what running it again would, provided that the steps it reads are fresh.

    Args:
        step: 1 to 9.
        files: the step files.
        params: hash of the parameters now.
        outside: hashes now of what is no step's output, by the name under which a step file's `inputs` hold it. All
            steps of a run rest on one evidence, so the first step's hash of it counts where this doesn't name it.
    """
    file = files.get(step)
    if file is None or file.params_hash != params or any(k not in files for k in READS[step]):
        return False
    evidence = files[1].inputs.get("evidence")
    now = ({"evidence": evidence} if evidence else {}) | dict(outside) | inputs_of(step, files)
    read = set(inputs_of(step, files))
    return read <= set(file.inputs) and all(now.get(name, value) == value for name, value in file.inputs.items())


def stale_steps(files: Files, params: str, outside: Mapping[str, str]) -> tuple[int, ...]:
    """The steps to run again: those that aren't fresh, and all that depend on them."""
    stale: set[int] = set()
    for step in STEPS:
        if stale & set(READS[step]) or not is_fresh(step, files, params, outside):
            stale.add(step)
    return tuple(sorted(stale))


def descendants(step: int) -> frozenset[int]:
    """The steps that depend on a step, directly or not."""
    found: set[int] = set()
    for later in STEPS:
        if {step, *found} & set(READS[later]):
            found.add(later)
    return frozenset(found)
