"""Encoders, the heads on top of them, and the EMA between two networks.

`resnet`, `torchvision_models` and `timm_models`, which import torchvision and timm, stand apart.
"""
