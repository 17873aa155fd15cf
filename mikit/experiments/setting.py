"""What every experiment on a feature needs, in one piece."""

from dataclasses import dataclass

from mikit.evidence.store import EvidenceStore
from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers.base import Explainer
from mikit.settings import Protocol
from mikit.targets.base import Target
from mikit.trace import Split


@dataclass(frozen=True, eq=False)
class Setting:
    """What all experiments of a run share. Compared and hashed by identity, so that measurements can be kept by it."""

    target: Target
    store: EvidenceStore
    vocabulary: Vocabulary
    """Counted on the corpus of `store`."""
    explainer: Explainer
    prompts: dict[Split, list[list[int]]]
    """Neutral prompts as content ids, no BOS."""
    protocol: Protocol
    seed: int
    """Of every random draw, together with the feature."""
    batch: int
    """Texts in a forward pass."""
    unseen: EvidenceStore | None = None
    """Where texts and positions are drawn from, if not from `store`: documents that no earlier verdict could see."""

    @property
    def drawn_from(self) -> EvidenceStore:
        """The evidence that texts and positions are drawn from; scale, kind and controls are always those of `store`."""
        return self.unseen or self.store
