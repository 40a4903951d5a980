"""Random views of a batch, reproducible from a seed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from coterie.contract.client import Batch, batch_seed
from coterie.contract.clusterer import to_unit
from coterie.contract.seeds import derive_seed

BLOCK = 256
"""Samples whose views are drawn at a time."""


def seeded_view(augment: nn.Module, images: Tensor, seed: int) -> Tensor:
    """Draw a view of each sample from a seed; global generators keep their state.

    Args:
        augment: Draws from PyTorch's global generators, as kornia does.
        images: A batch of samples, on the CPU or a CUDA device.
        seed: Equal seeds give equal bits for equal batches on one kind of device.

    Returns:
        Views of the batch's shape.
    """
    if isinstance(augment, nn.Identity):  # nothing to draw, and setting the generators takes time
        return images
    _draw_on_cpu(augment)
    # A run's precision must not change views: kornia draws in its module's dtype and in the default
    # dtype, which both follow the precision in a training step.
    augment.float()
    devices = [images.get_device()] if images.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        # Not torch.manual_seed, which would reseed all CUDA devices for good.
        torch.default_generator.manual_seed(seed)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(seed)
        with torch.autocast(images.device.type, enabled=False), _default_float32():
            views: Tensor = augment(images)
    return views


def _draw_on_cpu(augment: nn.Module) -> None:
    """Have kornia draw on the CPU, also after its modules were moved to a GPU.

    It draws where its modules are and then reads the values, for which each step would wait several
    times; and a GPU's draws depend on its model.
    """
    cpu = torch.device("cpu")
    for part in augment.modules():
        move = getattr(part, "set_rng_device_and_dtype", None)
        if move is not None and getattr(part, "device", None) != cpu:
            move(cpu, torch.float32)


@contextmanager
def _default_float32() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class LazyViews:
    """A view of each sample of a batch, drawn when it is indexed.

    A library's draw depends on the size of its batch. So views are drawn in blocks of `BLOCK`
    samples, each from its own seed, and do not depend on the slices or the number of accesses. The
    last block is cached.

    Args:
        augment: Maps float samples in [0, 1] to one random view of each.
        samples: uint8 or floating samples (batch, …).
        seed: Seed of the view.
        dtype: The model's dtype; views are drawn in float32 in any case.
    """

    def __init__(self, augment: nn.Module, samples: Tensor, seed: int, dtype: torch.dtype) -> None:
        self._augment, self._samples, self._seed, self._dtype = augment, samples, seed, dtype
        self._kept: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        """Return the number of samples in the batch."""
        return len(self._samples)

    @torch.no_grad()
    def __getitem__(self, rows: slice) -> Tensor:
        """Return views of these consecutive samples, in `dtype`."""
        start, stop, _ = rows.indices(len(self))
        pieces = []
        for number in range(start // BLOCK, -(-stop // BLOCK)):
            first = number * BLOCK
            pieces.append(self._block(number)[max(start - first, 0) : stop - first])
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).to(self._dtype)

    def _block(self, number: int) -> Tensor:
        if self._kept is None or self._kept[0] != number:
            samples = to_unit(self._samples[number * BLOCK : (number + 1) * BLOCK])
            seed = derive_seed(self._seed, "block", number) if number else self._seed
            self._kept = number, seeded_view(self._augment, samples, seed)
        return self._kept[1]


class LazySamples:
    """The samples of a batch without augmentation, scaled to [0, 1] on access.

    Args:
        samples: uint8 or floating samples (batch, …).
        dtype: The model's dtype.
    """

    def __init__(self, samples: Tensor, dtype: torch.dtype) -> None:
        self._samples, self._dtype = samples, dtype

    def __len__(self) -> int:
        """Return the number of samples in the batch."""
        return len(self._samples)

    def __getitem__(self, rows: slice) -> Tensor:
        """Return these samples, in `dtype`."""
        return to_unit(self._samples[rows], self._dtype)


def view_pair(
    augment: nn.Module, samples: Tensor, seed: int, dtype: torch.dtype
) -> tuple[LazyViews, LazyViews]:
    """Return two independent views of each sample, drawn when they are indexed."""
    a, b = (
        LazyViews(augment, samples, derive_seed(seed, "view", number), dtype) for number in range(2)
    )
    return a, b


def two_views(
    augment: nn.Module, samples: Tensor, seed: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return both views of `view_pair` as tensors."""
    a, b = view_pair(augment, samples, seed, dtype)
    return a[:], b[:]


def batch_views(
    augment: nn.Module, batch: Batch, dtype: torch.dtype, *, whole: bool
) -> tuple[Tensor, Tensor] | tuple[LazyViews, LazyViews]:
    """Return two views of a batch's samples, either whole or drawn per micro-batch.

    They depend on the batch's seed; without one, as under a plain Trainer, on PyTorch's global
    generator.
    """
    draw = two_views if whole else view_pair
    return draw(augment, batch["samples"], batch_seed(batch), dtype)
