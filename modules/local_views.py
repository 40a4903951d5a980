"""Multi-crop: two views of each image, and local ones, which show a part of it.

Caron et al., "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments"
(arXiv:2006.09882), section 3.3; DINO trains on them.
"""

from copy import deepcopy
from typing import Annotated, Any

import kornia.augmentation as kornia
import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import nn

from coterie.contract import Task, derive_seed
from coterie.contract.client import batch_seed
from coterie.contract.clusterer import parameter_dtype
from coterie.errors import ConfigError, reason
from coterie.modules.pretraining import PretrainingConfig, TwoViews
from coterie.networks.views import LazyViews

Share = Annotated[float, Field(gt=0.0, le=1.0)]


class LocalViewsConfig(PretrainingConfig):
    """How many local views there are, and how large."""

    local_views: NonNegativeInt = 6
    """Views of a part of each image, which only the student sees."""
    local_area: Annotated[tuple[Share, Share], Field(strict=False)] = (0.2, 0.6)
    """Bounds of a local view's share of a whole view's area."""
    local_size: PositiveInt | None = None
    """Pixels of a local view's side, for encoders that take any size; by default the images'."""


class LocalViews(TwoViews):
    """A module whose steps take two views of each sample, and then the local ones."""

    config: LocalViewsConfig

    def __init__(self, config: LocalViewsConfig, task: Task) -> None:
        super().__init__(config, task)
        self.part: nn.Module = nn.Identity()
        if config.local_views:
            self.part = nn.Sequential(self.augment, _crop(config, task))
        if config.local_size is not None:
            _check_size(self.online.encoder, config.local_size, task)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw all views on the device; each depends on the batch's seed and the view's number."""
        whole, seed = super().on_after_batch_transfer(batch, dataloader_idx), batch_seed(batch)
        seeds = [derive_seed(seed, "part", number) for number in range(self.config.local_views)]
        dtype = parameter_dtype(self)
        parts = [LazyViews(self.part, batch["samples"], one, dtype) for one in seeds]
        lazy = self.config.micro_batch_size is not None
        return *whole, *(parts if lazy else (part[:] for part in parts))


def _crop(config: LocalViewsConfig, task: Task) -> nn.Module:
    """Return a module that crops a local view from a whole one."""
    if len(task.shape) != 3:
        raise ConfigError(
            f"method.local_views={config.local_views}: samples of shape {task.shape} are not "
            "images; set method.local_views=0."
        )
    size = (config.local_size or task.shape[1], config.local_size or task.shape[2])
    crop: nn.Module = kornia.RandomResizedCrop(
        size, scale=config.local_area, cropping_mode="resample"
    )
    return crop


def _check_size(encoder: nn.Module, size: int, task: Task) -> None:
    """Refuse an encoder that cannot take local views, by shapes on the meta device."""
    probe = deepcopy(encoder).to("meta", torch.float32).eval()
    try:
        probe(torch.zeros(2, task.shape[0], size, size, device="meta"))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"method.local_size={size}: the encoder cannot take images of this size "
            f"({reason(error)}); leave it out, or give a timm ViT "
            "encoder.options={dynamic_img_size: true}."
        ) from error
