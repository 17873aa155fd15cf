"""What every experiment on a feature needs, in one piece."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mikit.evidence.store import EvidenceStore
from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers.base import Explainer
from mikit.settings import Protocol
from mikit.targets.base import Target
from mikit.trace import Split


@dataclass(frozen=True, eq=False)
class Setting:
    """What all experiments of a run share.

    Two settings are equal if nothing that is measured can differ: the parts are the same objects, whoever explains.
    Measurements are kept by it, so that a run finds those of another that this process made in an equal setting.
    """

    target: Target
    store: EvidenceStore
    vocabulary: Vocabulary
    """Counted on the corpus of `store`."""
    explainer: Explainer
    prompts: Mapping[Split, Sequence[Sequence[int]]]
    """Neutral prompts as content ids, no BOS."""
    protocol: Protocol
    seed: int
    """Of every random draw, together with the feature."""
    batch: int
    """Texts in a forward pass."""
    unseen: EvidenceStore | None = None
    """Where texts and positions are drawn from, if not from `store`: documents that no earlier verdict could see."""

    def _same(self) -> tuple[Any, ...]:
        shared = (self.target, self.store, self.vocabulary, self.prompts, self.unseen)
        return *map(id, shared), self.seed, self.batch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and (self._same(), self.protocol) == (other._same(), other.protocol)

    def __hash__(self) -> int:
        return hash(self._same())

    @property
    def drawn_from(self) -> EvidenceStore:
        """The evidence that texts and positions are drawn from; scale, kind and controls are always those of `store`."""
        return self.unseen or self.store
