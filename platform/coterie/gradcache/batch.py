"""Loss of a batch of representations: at once, or in micro-batches if the config says so."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import PositiveInt
from torch import Tensor

from coterie.config.method import MethodConfig
from coterie.gradcache.cached import Segment, Terms, cached_loss


class MicroBatched(MethodConfig):
    """Config of a method whose loss couples the samples of a batch."""

    micro_batch: ClassVar[str | None] = "micro_batch_size"

    micro_batch_size: PositiveInt | None = None
    """Samples per micro-batch, whose graph is in memory at a time: gradients of the whole batch are
    cached, at the cost of one more forward pass. By default the whole batch. Batch norm needs 2."""


UNCOUPLED = (
    "its loss is a mean over samples that do not see each other, so that a smaller batch_size "
    "needs less memory for the same gradient"
)
"""Why a method has no `micro_batch_size`."""


def batch_loss(
    parts: Mapping[str, Segment],
    loss: Callable[[Mapping[str, Any]], Terms],
    micro_batch_size: int | None,
) -> dict[str, Tensor]:
    """Compute the terms of a loss over all representations of a batch, ready for `backward`.

    Args:
        parts: The parts by name.
        loss: Maps representations by name to the terms; see `cached_loss`.
        micro_batch_size: None for one step with the whole batch's graph in memory.
    """
    if micro_batch_size is not None:
        sized = {n: replace(p, micro_batch_size=micro_batch_size) for n, p in parts.items()}
        return cached_loss(sized, loss)
    # Without a switch on `part.trained`: within vmap no parameter says that it takes a gradient.
    return dict(loss({name: part.apply(part.samples[:]) for name, part in parts.items()}))
