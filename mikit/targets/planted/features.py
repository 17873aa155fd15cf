"""The latents of a planted SAE: the declared features, one for each role, companions, and dead ones."""

from dataclasses import dataclass

import numpy as np

from mikit.errors import BadInput, one_of
from mikit.targets.planted.spec import Feature, Kind, Spec
from mikit.targets.planted.words import Lexicon

FORMS = {"digits": str.isdecimal, "capitalized": lambda word: word[:1].isupper()}


@dataclass(frozen=True)
class Trigger:
    """One way to fire: a token that is one of `own` and, if there are cues, has one of them close before it."""

    own: tuple[int, ...]
    """Token ids."""
    cues: tuple[int, ...] = ()
    """Token ids; none if the token alone decides."""
    within: int = 1
    """How far before the token a cue may stand, in tokens."""


@dataclass(frozen=True)
class Latent:
    """One latent. Its index is its place in the tuple of all latents."""

    name: str
    kind: Kind | None
    """None for the latent of a role."""
    triggers: tuple[Trigger, ...] = ()
    faint: tuple[int, ...] = ()
    """Token ids on which it is active below the firing threshold."""
    on_bos: bool = False
    promotes: tuple[int, ...] = ()
    suppresses: tuple[int, ...] = ()
    strength: float = 0.0
    """Change of logit, nats, of the words it moves most when it is about as active as it gets."""
    near: int | None = None
    """Index of the latent whose decoder direction is close to this one's."""
    cosine: float = 0.0

    @property
    def own(self) -> tuple[int, ...]:
        """Token ids on which it fires, with or without a cue."""
        return tuple(sorted({i for trigger in self.triggers for i in trigger.own}))

    @property
    def has_effect(self) -> bool:
        """Whether it moves any word."""
        return bool(self.promotes or self.suppresses)


def latents_of(spec: Spec, lexicon: Lexicon, seed: int) -> tuple[Latent, ...]:
    """All latents: declared ones in their order, then roles, companions, dead.

    Raises:
        BadInput: two features share a name, or a name in a feature is not known.
    """
    names: list[str] = []
    declared: list[Latent] = []
    for feature in spec.features:
        if feature.name in names:
            raise BadInput(f"feature {feature.name!r} is given twice: valid: a name of its own for each feature")
        declared.append(_declared(feature, lexicon, spec.strength, names))
        names.append(feature.name)
    roles = [
        Latent(f"role_{name}", None, (Trigger(_of_role(lexicon, index)),)) for index, name in enumerate(lexicon.roles)
    ]
    dead = [Latent(f"dead_{i}", "dead") for i in range(spec.dead)]
    return (*declared, *roles, *_companions(spec, lexicon, declared, seed), *dead)


def _of_role(lexicon: Lexicon, index: int) -> tuple[int, ...]:
    return tuple(np.flatnonzero(lexicon.role == index).tolist())


def _declared(feature: Feature, lexicon: Lexicon, strength: float, earlier: list[str]) -> Latent:
    where = f"feature {feature.name!r}"
    if feature.near is not None and feature.near not in earlier:
        raise BadInput(f"{where}, near: {one_of('earlier feature', feature.near, earlier)}")
    own = lexicon.ids(feature.fires_on, f"{where}, fires_on") or _formed(feature, lexicon)
    cues = lexicon.ids(feature.after, f"{where}, after")
    promotes = lexicon.ids(feature.promotes, f"{where}, promotes")
    suppresses = lexicon.ids(feature.suppresses, f"{where}, suppresses")
    faint = lexicon.ids(feature.faint, f"{where}, faint")
    _check(feature, lexicon, {"fires_on": own, "faint": faint}, {"promotes": promotes, "suppresses": suppresses})
    return Latent(
        name=feature.name,
        kind=feature.kind,
        triggers=_triggers(feature, lexicon, own, cues),
        faint=faint,
        on_bos=feature.kind == "bos",
        promotes=promotes,
        suppresses=suppresses,
        strength=feature.strength or strength,
        near=None if feature.near is None else earlier.index(feature.near),
        cosine=feature.cosine if feature.near else 0.0,
    )


def _triggers(feature: Feature, lexicon: Lexicon, own: tuple[int, ...], cues: tuple[int, ...]) -> tuple[Trigger, ...]:
    if feature.kind == "union":
        return tuple(Trigger(lexicon.ids([name], feature.name)) for name in feature.fires_on)
    return (Trigger(own, cues, feature.within),) if own else ()


def _formed(feature: Feature, lexicon: Lexicon) -> tuple[int, ...]:
    """Words of the feature's form, or those that end with its suffix and are longer."""
    if feature.form is not None:
        return tuple(i for word, i in lexicon.id_of.items() if FORMS[feature.form](word))
    if feature.suffix is not None:
        suffix = feature.suffix.lower()
        return tuple(
            i for word, i in lexicon.id_of.items() if word.lower().endswith(suffix) and len(word) > len(suffix)
        )
    return ()


def _check(feature: Feature, lexicon: Lexicon, *pairs: dict[str, tuple[int, ...]]) -> None:
    """One word where one is meant, some word where any is, and no word on both sides of a pair."""
    where = f"feature {feature.name!r}"
    if feature.kind in ("token", "sense") and len(pairs[0]["fires_on"]) != 1:
        raise BadInput(f"{where}: kind {feature.kind!r} fires on {len(pairs[0]['fires_on'])} words: valid: 1")
    if feature.kind == "union" and len(feature.fires_on) < 2:
        raise BadInput(f"{where}: kind 'union' fires on one sort of word: valid: two or more names")
    if feature.kind == "form" and not pairs[0]["fires_on"]:
        raise BadInput(f"{where}: no word of the language has the form {feature.form or feature.suffix!r}")
    for first, second in (pair.items() for pair in pairs):
        if both := sorted(set(first[1]) & set(second[1])):
            raise BadInput(
                f"{where}: {lexicon.texts[both[0]].strip()!r} is in {first[0]} and in {second[0]}: valid: one of them"
            )


def _companions(spec: Spec, lexicon: Lexicon, declared: list[Latent], seed: int) -> list[Latent]:
    """A latent for each class that is not neutral, unless declared features read all of its words."""
    if spec.companions is None:
        return []
    rng = np.random.default_rng([seed, 1])
    read = {i for latent in declared for trigger in latent.triggers for i in (*trigger.own, *trigger.cues)}
    free = [name for name, ids in lexicon.classes.items() if name not in lexicon.neutral and not read.issuperset(ids)]
    taken = {i for latent in declared for i in latent.promotes}
    content = [name for name, ids in lexicon.classes.items() if name not in lexicon.neutral and len(ids) > 5]
    # what a declared feature promotes is left to it, if that leaves enough
    targets = [name for name in content if not taken.intersection(lexicon.classes[name])]
    targets = targets if len(targets) > spec.companions.classes else content
    made = []
    for name in free:
        others = [target for target in targets if target != name]
        drawn = rng.choice(len(others), size=min(spec.companions.classes, len(others)), replace=False)
        promotes = lexicon.ids([others[i] for i in drawn], name)
        made.append(
            Latent(
                f"companion_{name}",
                "class",
                (Trigger(lexicon.classes[name]),),
                promotes=promotes,
                strength=spec.strength,
            )
        )
    return made
