"""The tracked model from which a run starts."""

from pathlib import Path

from coterie.config.schema import RunConfig
from coterie.models.pretrained_encoder import Pretrained


def pretrained_artifact(config: RunConfig) -> str | None:
    """Return the W&B artifact of the model whose encoder the run uses; None if there is none."""
    if "wandb" not in config.tracking.loggers or not isinstance(config.encoder, Pretrained):
        return None
    from coterie.tracking.wandb_logger import model_artifact  # a slow import

    return model_artifact(Path(config.encoder.path))
