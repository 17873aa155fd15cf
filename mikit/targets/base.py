"""A target: the language model, the SAE on one of its hook points, and the facts that reading them needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch

from mikit.errors import BadInput
from mikit.targets.sae import Sae


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A model with a hook point, compared by identity. Text enters through `ids_of`, so that everybody sees the same token ids."""

    model: Any
    """A transformers causal language model in eval mode; no gradient is ever taken."""
    tokenizer: Any
    """Its tokenizer: callable, `decode`, as transformers has them."""
    layer: int
    """Index of the block whose output is the hook point."""
    hook_point: str
    """Path of that submodule inside the model: its output is the residual stream."""
    bos_id: int
    """The id put at index 0, once. It belongs to the target: a tokenizer's own bos may be a chat token."""
    special_ids: frozenset[int]
    """Ids that are never evidence."""
    model_id: str
    """Where the model comes from."""
    model_hash: str
    """Of the weights."""
    tokenizer_hash: str
    """Of the vocabulary."""

    @property
    def device(self) -> torch.device:
        """Where the model's weights lie."""
        return self.model.device

    @property
    def computes_on(self) -> str:
        """The device that the model is run on, wherever it lies; `device` is where tensors for it are made."""
        return str(getattr(self.model, "computes_on", self.model.device))

    @property
    def vocab_size(self) -> int:
        """Number of rows of the unembedding."""
        return self.model.get_output_embeddings().weight.shape[0]

    def ids_of(self, text: str) -> list[int]:
        """Content token ids of a text: no BOS, and special tokens written out in the text are dropped.

        Raises:
            BadInput: the text holds half a character (a lone surrogate), which no tokenizer takes.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise BadInput("the text holds half a character (a lone surrogate): valid: whole ones") from None
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [i for i in ids if i not in self.special_ids]

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """The text of each id alone, leading space kept."""
        return [self.tokenizer.decode([i]) for i in ids]

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of a run of content ids."""
        return self.tokenizer.decode(list(ids))


@dataclass(frozen=True, eq=False)
class Target(LanguageModel):
    """What is explained: a language model, and an SAE on its hook point."""

    name: str
    """The name in params, such as `smollm2-135m`."""
    sae: Sae
    default_corpus: str
    """The corpus used when params name none."""
    own_documents: tuple[tuple[str, str], ...] | None = None
    """Id and text of the documents of a target that has a language of its own: its default corpus."""
    own_prompts: tuple[str, ...] | None = None
    """Its neutral prompts, 48; a target that speaks English uses those in the params folder."""

    def check_feature(self, feature: int) -> None:
        """Raise `BadInput` unless `feature` is a latent of the SAE."""
        if isinstance(feature, bool) or not isinstance(feature, Integral):
            raise BadInput(f"feature {feature!r} is no index: valid: 0 to {self.sae.d_sae - 1}")
        if not 0 <= feature < self.sae.d_sae:
            raise BadInput(f"feature {feature} is out of range: {self.sae.id} has latents 0 to {self.sae.d_sae - 1}")
