"""The planted model: a transformer of known weights, and an SAE whose features are known because they were put there.

`load` makes it from a spec in a second. `truth` says what there is to find; nothing in the library reads it.
"""

from pathlib import Path

from mikit.files import value_hash
from mikit.targets.base import Target
from mikit.targets.planted.build import digest_of, model_of, sae_of
from mikit.targets.planted.directions import directions_of
from mikit.targets.planted.documents import documents_of, prompts_of
from mikit.targets.planted.features import latents_of
from mikit.targets.planted.spec import read_spec
from mikit.targets.planted.words import SPECIALS, lexicon_of, tokenizer_of

NAME = "planted"
LAYER = 0

__all__ = ["LAYER", "NAME", "load"]


def load(spec: Path | None = None, seed: int | None = None) -> Target:
    """The planted model of a spec: the same for the same spec and seed.

    Args:
        spec: a YAML file like `planted.yaml`, which is used if there is none.
        seed: of everything that a spec leaves to chance; the spec's own if None.

    Raises:
        BadInput: the spec has a fault; one line says where.
    """
    plan = read_spec(spec)
    seed = plan.seed if seed is None else seed
    lexicon = lexicon_of(plan)
    latents = latents_of(plan, lexicon, seed)
    directions = directions_of(latents, seed)
    model = model_of(lexicon, latents, directions, seed)
    sae = sae_of(latents, directions)
    return Target(
        model=model,
        tokenizer=tokenizer_of(lexicon.texts),
        layer=LAYER,
        hook_point=f"model.layers.{LAYER}",
        bos_id=0,
        special_ids=frozenset(range(len(SPECIALS))),
        model_id=NAME if spec is None else f"{NAME}:{spec.name}",
        model_hash=digest_of(model.state_dict().values()),
        tokenizer_hash=value_hash(lexicon.texts),
        name=NAME,
        sae=sae,
        default_corpus=NAME,
        own_documents=documents_of(lexicon, latents, plan.documents, seed),
        own_prompts=prompts_of(lexicon, latents, seed),
    )
