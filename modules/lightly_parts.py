"""The parts of lightly that methods build on: losses, heads and a masked transformer.

Susmelj et al., "Lightly", https://github.com/lightly-ai/lightly; an extra, imported here alone.
"""

from coterie.errors import ConfigError

try:
    import timm  # noqa: F401 - without it lightly lacks the masked transformer
    from lightly.loss import BarlowTwinsLoss, DINOLoss, NTXentLoss, VICRegLoss
    from lightly.models.modules import (
        MaskedVisionTransformerDecoderTIMM,
        MaskedVisionTransformerTIMM,
    )
    from lightly.models.modules.heads import (
        BarlowTwinsProjectionHead,
        DINOProjectionHead,
        MoCoProjectionHead,
        VICRegProjectionHead,
    )
    from lightly.models.utils import get_at_index, patchify, set_at_index
    from timm.models.vision_transformer import VisionTransformer
except ModuleNotFoundError as missing:
    name = str(missing.name).partition(".")[0]
    raise ConfigError(
        f"target: DINO, MAE, VICReg, Barlow Twins and MoCo need {name}, which is not installed; "
        "install it with pip install 'coterie[lightly]'."
    ) from missing

__all__ = [
    "BarlowTwinsLoss",
    "BarlowTwinsProjectionHead",
    "DINOLoss",
    "DINOProjectionHead",
    "MaskedVisionTransformerDecoderTIMM",
    "MaskedVisionTransformerTIMM",
    "MoCoProjectionHead",
    "NTXentLoss",
    "VICRegLoss",
    "VICRegProjectionHead",
    "VisionTransformer",
    "get_at_index",
    "patchify",
    "set_at_index",
]
