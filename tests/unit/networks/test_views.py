"""Views in blocks: the same whatever is asked for at a time, and as ever for a small batch."""

import pytest
import torch
from torch import nn

from coterie.contract.clusterer import to_unit
from coterie.contract.seeds import derive_seed
from coterie.datamodules.augmentations import DigitsAugmentation, NaturalAugmentation
from coterie.networks.views import BLOCK, LazyViews, seeded_view, two_views

SHAPE = (1, 8, 8)
AUGMENT = DigitsAugmentation().build(SHAPE)


def samples(n):
    draw = torch.Generator().manual_seed(n)
    return torch.randint(0, 256, (n, *SHAPE), dtype=torch.uint8, generator=draw)


def views(n, **options):
    return LazyViews(AUGMENT, samples(n), 7, options.get("dtype", torch.float32))


@pytest.mark.parametrize("size", [1, 64, 100, BLOCK, 400, 1000])
def test_micro_batches_are_parts_of_the_whole(size):
    n = 2 * BLOCK + 70
    whole, other = views(n)[:], views(n)
    pieces = [other[start : start + size] for start in range(0, n, size)]
    assert len(whole) == n == len(other)
    assert torch.equal(torch.cat(pieces), whole)
    assert torch.equal(other[300:310], whole[300:310])  # and again, backwards
    assert torch.equal(other[10:20], whole[10:20])


def test_blocks_are_drawn_from_seeds_of_their_own():
    same = samples(1).expand(2 * BLOCK, -1, -1, -1)
    whole = LazyViews(AUGMENT, same, 7, torch.float32)[:]
    assert not torch.equal(whole[:BLOCK], whole[BLOCK:])


def test_a_batch_of_one_block_is_drawn_as_a_whole():
    wanted = seeded_view(AUGMENT, to_unit(samples(BLOCK)), derive_seed(5, "view", 1))
    assert torch.equal(two_views(AUGMENT, samples(BLOCK), 5, torch.float32)[1], wanted)


def test_the_type_changes_no_draw():
    assert torch.equal(views(300, dtype=torch.float64)[:], views(300)[:].double())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_precision_of_a_training_step_changes_no_draw(dtype):
    wanted = views(300)[:]
    torch.set_default_dtype(dtype)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = views(300)[:]
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, wanted)


def test_without_augmentation_views_are_the_samples():
    plain = LazyViews(nn.Identity(), samples(300), 7, torch.float32)
    assert torch.equal(plain[250:270], to_unit(samples(300))[250:270])


@pytest.mark.parametrize("config", [DigitsAugmentation(), NaturalAugmentation(blur_probability=1)])
def test_moved_to_a_gpu_views_are_still_drawn_on_the_cpu(config):
    """Draws there wait for the GPU in each step; `tests/gpu` counts the waits on a real one."""
    augment, images = config.build((3, 16, 16)), torch.rand(5, 3, 16, 16)
    wanted = seeded_view(augment, images, 3)
    drawing = [part for part in augment.modules() if hasattr(part, "set_rng_device_and_dtype")]
    for part in drawing:
        part.device = torch.device("cuda")  # what a move leaves there
    assert torch.equal(seeded_view(augment, images, 3), wanted)
    assert len(drawing) >= 4
    assert {torch.device(part.device).type for part in drawing} == {"cpu"}
