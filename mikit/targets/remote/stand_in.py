"""What stands in a target where the model and the tokenizer would: it knows their facts, and whom to ask for the rest."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from mikit.targets.base import Target
from mikit.targets.options import Options
from mikit.targets.remote.client import HostClient
from mikit.targets.remote.served import served
from mikit.targets.sae import Sae


class StandIn:
    """In the place of a transformers model that a host holds: a served function finds the host through it."""

    device = torch.device("cpu")
    """Where tensors for it are made and where its answers lie."""

    def __init__(self, client: HostClient) -> None:
        facts = client.facts
        self.host_client = client
        self.computes_on: str = facts["device"]
        """Where the host's model lies."""
        self.sae_hash: str = facts["sae"]["hash"]
        """Of the SAE that lies beside it."""
        self.dtype: torch.dtype = getattr(torch, facts["dtype"])
        self._head = SimpleNamespace(weight=torch.empty(facts["unembedding"], device="meta"))

    def get_output_embeddings(self) -> Any:
        """Something of the unembedding's shape, without its numbers."""
        return self._head

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """None are here."""
        return iter(())

    def buffers(self) -> Iterator[torch.Tensor]:
        """None are here."""
        return iter(())

    def modules(self) -> Iterator[torch.nn.Module]:
        """None are here."""
        return iter(())


class RemoteTokenizer:
    """The host's tokenizer; the text of each single token is known here."""

    def __init__(self, lm: "SimpleNamespace", texts: Sequence[str]) -> None:
        self._lm, self._texts = lm, texts
        self._ids: Callable[[str], tuple[int, ...]] = lru_cache(maxsize=4096)(lambda text: tuple(token_ids(lm, text)))

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        """Token ids of a text, under `input_ids`."""
        assert not add_special_tokens, "the target puts BOS in front, not its tokenizer"
        return {"input_ids": list(self._ids(text))}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids."""
        if len(ids) == 1 and 0 <= ids[0] < len(self._texts):
            return self._texts[ids[0]]
        return decoded(self._lm, list(ids))


@served()
def token_ids(lm: Any, text: str) -> list[int]:
    """Token ids of a text as the tokenizer gives them, without added ones."""
    return list(lm.tokenizer(text, add_special_tokens=False)["input_ids"])


@served()
def decoded(lm: Any, ids: list[int]) -> str:
    """The text of some ids."""
    return lm.tokenizer.decode(ids)


@served()
def token_texts(lm: Any) -> list[str]:
    """The text of each token alone."""
    return lm.token_strings(range(lm.vocab_size))


@served()
def own_texts(lm: Any) -> list[Any]:
    """Documents and prompts of a target that has a language of its own; None each where it has not."""
    return [lm.own_documents, lm.own_prompts]


def served_target(address: Path, name: str, layer: int | None, options: Options) -> Target:
    """A target whose model a host holds; it loads and checks it if nobody has asked for it before.

    Args:
        address: path of the host's socket.
        name, layer, options: as for `load_target`.

    Raises:
        BadInput: the target can't be loaded, or does not pass its checks.
        MikitError: there is no host.
    """
    wanted = {"name": name, "layer": layer, "options": dataclasses.asdict(options)}
    client = HostClient(address, wanted)
    facts = client.facts
    model = StandIn(client)
    lm = SimpleNamespace(model=model)
    documents, prompts = own_texts(lm)
    return Target(
        **facts["target"] | {"special_ids": frozenset(facts["target"]["special_ids"])},
        model=model,
        tokenizer=RemoteTokenizer(lm, tuple(token_texts(lm))),
        sae=mapped_sae(Path(facts["sae_file"]), facts["sae"]),
        own_documents=documents and tuple((first, second) for first, second in documents),
        own_prompts=prompts and tuple(prompts),
    )


def mapped_sae(file: Path, facts: dict[str, Any]) -> Sae:
    """An SAE whose tensors lie in a file that all processes of a machine map: they share its memory."""
    from safetensors.torch import load_file

    return Sae(**facts | {"dtype": getattr(torch, facts["dtype"])}, **load_file(file))


def sae_facts(sae: Sae) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """An SAE as JSON and tensors, from which `mapped_sae` makes it again."""
    fields = {name: value for name, value in vars(sae).items() if value is not None}
    tensors = {name: value.cpu().contiguous() for name, value in fields.items() if isinstance(value, torch.Tensor)}
    facts = {name: value for name, value in fields.items() if name not in tensors}
    return facts | {"dtype": str(sae.dtype).removeprefix("torch.")}, tensors
