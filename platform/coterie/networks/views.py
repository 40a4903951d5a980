"""Random views of a batch, drawn from a seed."""

import torch
from torch import Tensor, nn

from coterie.contract.seeds import derive_seed
from coterie.networks.clusterer import to_unit


def seeded_view(augment: nn.Module, images: Tensor, seed: int) -> Tensor:
    """One view of each sample, drawn from a seed; the global generators are left as they were.

    Args:
        augment: Draws from PyTorch's global generators, as kornia does.
        images: A batch of samples, on the CPU or a CUDA device.
        seed: Equal seeds give equal bits for equal batches on one kind of device.

    Returns:
        Views of the batch's shape.
    """
    if isinstance(augment, nn.Identity):  # it draws nothing, and setting the generators takes time
        return images
    # kornia draws in the type that its module was cast to: a run's precision must not change views.
    augment.float()
    devices = [images.get_device()] if images.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        # Not torch.manual_seed, which would reseed every other CUDA device for good.
        torch.default_generator.manual_seed(seed)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(seed)
        views: Tensor = augment(images)
    return views


@torch.no_grad()
def two_views(
    augment: nn.Module, samples: Tensor, seed: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Two independent views of each sample, in `dtype`.

    Args:
        augment: Maps float samples in [0, 1] to one random view of each.
        samples: uint8 or floating samples (batch, …).
        seed: The batch's seed.
        dtype: The model's type; views are drawn in float32 whatever it is.
    """
    unit = to_unit(samples)
    a = seeded_view(augment, unit, derive_seed(seed, "view", 0))
    b = seeded_view(augment, unit, derive_seed(seed, "view", 1))
    return a.to(dtype), b.to(dtype)
