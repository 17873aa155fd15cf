"""The planted model ready for experiments, made once a process: evidence, prompts, and what its spec says is true."""

import dataclasses
import tempfile
from functools import lru_cache
from pathlib import Path

from mikit.evidence.corpora import load_corpus
from mikit.evidence.observe import observe
from mikit.evidence.prompts import neutral_prompts
from mikit.evidence.scan import scan
from mikit.evidence.store import open_store
from mikit.evidence.vocabulary import vocabulary_of
from mikit.experiments.intervene import intervene
from mikit.experiments.setting import Setting
from mikit.explainers import get_explainer
from mikit.settings import Params
from mikit.targets import load_target
from mikit.targets.planted.truth import Truth, truths
from mikit.trace import SPLITS, Intervention, Observation, OutputHypothesis


@dataclasses.dataclass(frozen=True, eq=False)
class Lab:
    """A setting, with each feature's first steps done when they are asked for."""

    setting: Setting

    @lru_cache(maxsize=32)  # noqa: B019 (one lab lives as long as the process)
    def observation(self, feature: int) -> Observation:
        setting = self.setting
        return observe(setting.target, setting.store, feature, setting.protocol, setting.seed)

    @lru_cache(maxsize=32)  # noqa: B019
    def intervention(self, feature: int) -> Intervention:
        return intervene(self.setting, feature, self.observation(feature))

    def found(self, feature: int) -> tuple[Setting, int, Observation, Intervention]:
        """The arguments that scores and checks begin with."""
        return self.setting, feature, self.observation(feature), self.intervention(feature)


@lru_cache(maxsize=1)
def lab() -> Lab:
    planted, params = load_target("planted"), Params()
    with tempfile.TemporaryDirectory() as folder:
        scan(planted, load_corpus("planted", planted), params, Path(folder) / "store")
        store = open_store(Path(folder) / "store")
    return Lab(
        Setting(
            target=planted,
            store=store,
            vocabulary=vocabulary_of(planted, store.token_counts),
            explainer=get_explainer("statistical"),
            prompts={split: neutral_prompts(planted, split) for split in SPLITS},
            protocol=params.protocol,
            seed=0,
            batch=params.batch,
        )
    )


TRUTH: dict[str, Truth] = {truth.name: truth for truth in truths()}


def true_list(name: str) -> OutputHypothesis:
    """What the spec says that a feature moves, as an output hypothesis."""
    truth = TRUTH[name]
    direction = "promotes" if truth.promotes else "suppresses"
    tokens = sorted(truth.promotes or truth.suppresses)
    return OutputHypothesis(id="O1", text="As planted.", direction=direction, kind="list", tokens=tokens)
