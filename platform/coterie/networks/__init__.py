"""Encoders, the heads on top of them, and the EMA between two networks.

`resnet`, `torchvision_models` and `timm_models`, which import torchvision and timm, stand apart.
"""

from coterie.networks.ema import update_ema
from coterie.networks.encoders import (
    MLP,
    AlexNet,
    ConvNet2,
    ConvNet3,
    ConvNet4,
    Encoder,
    EncoderConfig,
    Raw,
    USPSNet,
)
from coterie.networks.heads import (
    Centroids,
    ClusterHead,
    FuzzyCentroids,
    PredictionHead,
    Projector,
    UnitLength,
)

__all__ = [
    "MLP",
    "AlexNet",
    "Centroids",
    "ClusterHead",
    "ConvNet2",
    "ConvNet3",
    "ConvNet4",
    "Encoder",
    "EncoderConfig",
    "FuzzyCentroids",
    "PredictionHead",
    "Projector",
    "Raw",
    "USPSNet",
    "UnitLength",
    "update_ema",
]
