"""Run as a script in a process of its own, since importing sae-lens takes ten seconds: SAEs of every architecture, saved by
sae-lens, with what sae-lens itself makes of some inputs.

`python lens_saes.py FOLDER` fills FOLDER with a folder for each SAE, and `reference.safetensors` in each.
"""

import inspect
import json
import sys
from dataclasses import fields
from pathlib import Path

import torch

D_IN, D_SAE, N = 12, 40, 64
SCALE = 0.37
"""Factor of the activations that the folded SAE is trained on."""


def filled(sae, seed):
    """Random weights in every parameter, the threshold positive."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sae.named_parameters():
        value = torch.randn(weight.shape, generator=generator)
        weight.data = (value.abs() * 0.3 if "threshold" in name else value * 0.6).to(weight.dtype)
    return sae


def main(folder: Path) -> None:
    import sae_lens
    from sae_lens import SAE
    from sae_lens.saes import batchtopk_sae, gated_sae, jumprelu_sae, standard_sae, topk_sae, transcoder

    x = 2 * torch.randn(N, D_IN, generator=torch.Generator().manual_seed(9)) + 0.5
    sizes = {"d_in": D_IN, "d_sae": D_SAE}
    kinds = {
        "standard": (standard_sae.StandardSAE, standard_sae.StandardSAEConfig),
        "jumprelu": (jumprelu_sae.JumpReLUSAE, jumprelu_sae.JumpReLUSAEConfig),
        "topk": (topk_sae.TopKSAE, topk_sae.TopKSAEConfig),
        "gated": (gated_sae.GatedSAE, gated_sae.GatedSAEConfig),
    }

    def keep(name, sae, **more):
        target = folder / name
        sae.save_model(target)
        from safetensors.torch import save_file

        with torch.no_grad():
            acts = sae.encode(x.to(sae.dtype))
            found = {"x": x, "acts": acts.float(), "decoded": sae(x.to(sae.dtype)).float(), **more}
        save_file({key: value.contiguous() for key, value in found.items()}, target / "reference.safetensors")

    for seed, (kind, (cls, config)) in enumerate(kinds.items()):
        more = {"k": 5} if kind == "topk" else {}
        for flag in (True, False):
            made = config(**sizes, **more, apply_b_dec_to_input=flag)
            made.metadata.hook_name = "blocks.3.hook_resid_pre"
            keep(f"{kind}-{flag}", filled(cls(made), seed))
        for normalize in ("layer_norm", "constant_norm_rescale"):
            keep(f"{kind}-{normalize}", filled(cls(config(**sizes, **more, normalize_activations=normalize)), seed))
        keep(f"{kind}-bfloat16", filled(cls(config(**sizes, **more, dtype="bfloat16")), seed))
        if kind != "topk":
            sae = filled(cls(config(**sizes)), seed)
            sae.fold_W_dec_norm()
            keep(f"{kind}-folded", sae)
        scaled = filled(cls(config(**sizes, **more, normalize_activations="expected_average_only_in")), seed)
        with torch.no_grad():
            acts, decoded = scaled.encode(SCALE * x), scaled(SCALE * x) / SCALE
        scaled.save_model(folder / f"{kind}-unscaled")
        scaled.fold_activation_norm_scaling_factor(SCALE)
        keep(f"{kind}-scaled", scaled, acts_before=acts, decoded_before=decoded)
    rescaling = topk_sae.TopKSAEConfig(**sizes, k=5, rescale_acts_by_decoder_norm=True)
    keep("topk-rescaled", filled(topk_sae.TopKSAE(rescaling), 2))

    config = batchtopk_sae.BatchTopKTrainingSAEConfig(**sizes, k=5)
    trained = filled(batchtopk_sae.BatchTopKTrainingSAE(config), 7)
    trained.topk_threshold = torch.tensor(0.8, dtype=trained.topk_threshold.dtype)
    trained.save_model(folder / "batchtopk-checkpoint")
    trained.save_inference_model(folder / "batchtopk-inference")
    keep("batchtopk", SAE.load_from_disk(folder / "batchtopk-inference"))
    training = jumprelu_sae.JumpReLUTrainingSAE(jumprelu_sae.JumpReLUTrainingSAEConfig(**sizes, dtype="bfloat16"))
    filled(training, 8).save_inference_model(folder / "jumprelu-trained")
    transcoder.Transcoder(transcoder.TranscoderConfig(**sizes, d_out=D_IN, apply_b_dec_to_input=False)).save_model(
        folder / "transcoder"
    )
    released(folder)
    (folder / "symbols.json").write_text(json.dumps(symbols(sae_lens)))


def released(folder: Path) -> None:
    """Fetch one of the SAEs by hub repository and id, from a cache laid out as the hub's; the network is off."""
    from mikit.targets.lens_release import fetched

    (folder / "fetched.json").write_text(json.dumps(str(fetched("someone/saes/inner/jumprelu"))))


def symbols(sae_lens) -> dict:
    """Everything of sae-lens that this project calls."""
    from sae_lens.config import LoggingConfig, SAETrainerConfig
    from sae_lens.loading.pretrained_saes_directory import get_pretrained_saes_directory
    from sae_lens.saes.batchtopk_sae import BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig
    from sae_lens.training.sae_trainer import SAETrainer

    directory = get_pretrained_saes_directory()
    return {
        "from_pretrained": list(inspect.signature(sae_lens.SAE.from_pretrained).parameters),
        "save_model": list(inspect.signature(sae_lens.SAE.save_model).parameters),
        "releases": [name in directory for name in ("gemma-scope-2b-pt-res", "gemma-scope-2b-pt-res-canonical")],
        "canonical": directory["gemma-scope-2b-pt-res-canonical"].saes_map,
        "all": directory["gemma-scope-2b-pt-res"].saes_map,
        "trainer": [name for name in ("fit",) if hasattr(SAETrainer, name)],
        "save_inference_model": hasattr(BatchTopKTrainingSAE, "save_inference_model"),
        "fields": [[field.name for field in fields(config)] for config in
                   (LoggingConfig, SAETrainerConfig, BatchTopKTrainingSAEConfig)],
    }  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
