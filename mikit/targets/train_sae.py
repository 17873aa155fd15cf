"""Training an SAE with sae-lens on activations that were cached beforehand."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Training:
    """How an SAE is trained: BatchTopK (Bussmann et al. 2024), saved as JumpReLU."""

    d_in: int
    """Width of the residual stream."""
    d_sae: int = 4096
    """Number of latents."""
    k: int = 32
    """Mean number of active latents at a position."""
    samples: int = 3_500_000
    """Positions drawn, repeats included."""
    batch: int = 2048
    """Positions in a step."""
    lr: float = 8e-4
    """Adam's learning rate; linear warm-up over 5 % of the steps, linear decay over the last 25 %."""
    seed: int = 0


def train_sae(activations: Iterator[Float[Tensor, "batch d_in"]], training: Training, folder: Path) -> dict:
    """Train, and write the SAE to `folder` in sae-lens' inference format, float32, decoder rows of norm 1.

    Args:
        activations: endless float32 batches of `training.batch` rows.
        training: sizes and rates.
        folder: made if it is not there.

    Returns:
        The training settings as a plain dict, for the card.
    """
    from sae_lens.config import LoggingConfig, SAETrainerConfig
    from sae_lens.saes.batchtopk_sae import BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig
    from sae_lens.training.sae_trainer import SAETrainer

    torch.manual_seed(training.seed)
    steps = training.samples // training.batch
    sae = BatchTopKTrainingSAE(
        BatchTopKTrainingSAEConfig(
            d_in=training.d_in,
            d_sae=training.d_sae,
            k=training.k,
            normalize_activations="expected_average_only_in",
        )
    )
    config = SAETrainerConfig(
        total_training_samples=training.samples,
        train_batch_size_samples=training.batch,
        lr=training.lr,
        lr_end=training.lr / 10,
        lr_warm_up_steps=steps // 20,
        lr_decay_steps=steps // 4,
        dead_feature_window=max(20, steps // 15),
        n_batches_for_norm_estimate=min(100, steps),
        logger=LoggingConfig(log_to_wandb=False),
    )
    trained = SAETrainer(config, sae, activations).fit()
    trained.save_inference_model(folder)
    return asdict(training)
