"""What there is to find in a planted model, by its spec: for tests and benchmarks. Nothing in the library reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mikit.targets.planted.features import Latent, latents_of
from mikit.targets.planted.spec import Feature, Kind, Spec, read_spec
from mikit.targets.planted.words import Lexicon, lexicon_of
from mikit.trace import Clause, FeatureKind, GateVerdict, Rule

Gate = Literal["input", "output", "chain"]


@dataclass(frozen=True)
class Truth:
    """One latent of the planted SAE, as the spec has it. Words are token texts, with their leading space."""

    index: int
    name: str
    kind: Kind | None
    """None for the latent of a role."""
    rule: Rule | None
    """What makes it fire among content tokens; None if nothing does."""
    own: frozenset[str]
    """Tokens on which it can fire."""
    cues: frozenset[str]
    """Tokens one of which must stand close before; none if there need be none."""
    within: int
    faint: frozenset[str]
    """Tokens on which it is active below the firing threshold."""
    on_bos: bool
    promotes: frozenset[str]
    suppresses: frozenset[str]
    feature_kind: FeatureKind | None
    """What the evidence step ought to call it; None for the latent of a role."""
    near: str | None
    """The feature whose direction is declared to be close to this one's."""
    gates: dict[Gate, GateVerdict] | None
    """What a perfect pipeline finds at each end; None for the latent of a role."""

    def fires(self, tokens: Sequence[str]) -> list[int]:
        """The positions at which it fires among a text's content tokens, ascending.

        Every latent has one list of own tokens and at most one of cues, so that this says what `rule` says.
        """
        found = []
        for i, token in enumerate(tokens):
            before = tokens[max(i - self.within, 0) : i]
            if token in self.own and (not self.cues or any(cue in self.cues for cue in before)):
                found.append(i)
        return found

    def active(self, tokens: Sequence[str]) -> list[int]:
        """The positions at which its activation is above 0: where it fires, and its faint tokens."""
        return sorted({*self.fires(tokens), *(i for i, token in enumerate(tokens) if token in self.faint)})


def truths(spec: Path | None = None, seed: int | None = None) -> tuple[Truth, ...]:
    """The truth of every latent, by index.

    Raises:
        BadInput: the spec has a fault.
    """
    plan = read_spec(spec)
    lexicon = lexicon_of(plan)
    latents = latents_of(plan, lexicon, plan.seed if seed is None else seed)
    return tuple(_truth(i, latent, plan, lexicon) for i, latent in enumerate(latents))


def _truth(index: int, latent: Latent, spec: Spec, lexicon: Lexicon) -> Truth:
    declared = spec.features[index] if index < len(spec.features) else None
    return Truth(
        index=index,
        name=latent.name,
        kind=latent.kind,
        rule=_rule(latent, declared, lexicon),
        own=_texts(lexicon, latent.own),
        cues=_texts(lexicon, [i for trigger in latent.triggers for i in trigger.cues]),
        within=max((trigger.within for trigger in latent.triggers), default=1),
        faint=_texts(lexicon, latent.faint),
        on_bos=latent.on_bos,
        promotes=_texts(lexicon, latent.promotes),
        suppresses=_texts(lexicon, latent.suppresses),
        feature_kind=_feature_kind(latent),
        near=declared.near if declared else None,
        gates=_gates(latent),
    )


def _texts(lexicon: Lexicon, ids: Sequence[int]) -> frozenset[str]:
    return frozenset(lexicon.texts[i] for i in ids)


def _rule(latent: Latent, declared: Feature | None, lexicon: Lexicon) -> Rule | None:
    if declared is not None and declared.kind == "form":
        return Rule(any_of=[Clause(form=declared.form, suffix=declared.suffix)])
    clauses = [
        Clause(
            tokens=sorted(_texts(lexicon, trigger.own)),
            after=sorted(_texts(lexicon, trigger.cues)) or None,
            within=trigger.within,
        )
        for trigger in latent.triggers
    ]
    return Rule(any_of=clauses) if clauses else None


def _feature_kind(latent: Latent) -> FeatureKind | None:
    if latent.kind is None:
        return None
    kinds: dict[Kind, FeatureKind] = {"dead": "dead", "bos": "special_only", "dense": "dense", "rare": "rare"}
    return kinds.get(latent.kind, "normal")


def _gates(latent: Latent) -> dict[Gate, GateVerdict] | None:
    if latent.kind is None:
        return None
    if latent.kind in ("dead", "bos"):
        return {"input": "none", "output": "none", "chain": "none"}
    at_input: GateVerdict = "undecided" if latent.kind in ("dense", "rare") else "pass"
    after: GateVerdict = "pass" if latent.has_effect else "none"
    # too few places fire in the documents of `confirm` to ablate the feature at
    at_chain: GateVerdict = "undecided" if latent.kind == "rare" and latent.has_effect else after
    return {"input": at_input, "output": after, "chain": at_chain}
