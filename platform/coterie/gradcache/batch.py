"""Training steps that can cache gradients, micro-batch by micro-batch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, TypeVar

from pydantic import PositiveInt

from coterie.config.method import MethodConfig
from coterie.gradcache.cached import Rows, Segment, Terms, cached_loss, represented


class MicroBatched(MethodConfig):
    """Config of a method whose loss couples the samples of a batch."""

    micro_batch: ClassVar[str | None] = "micro_batch_size"

    micro_batch_size: PositiveInt | None = None
    """Samples per micro-batch, of which one graph is in memory at a time: gradients of the whole
    batch are cached, at the cost of one more forward pass. By default the whole batch. Batch norm
    needs 2."""


UNCOUPLED = (
    "its loss is a mean over samples that are not compared, so a smaller batch_size does as well "
    "with less memory"
)
"""Why a method has no `micro_batch_size`."""

Views = tuple[Rows, ...]
"""What a step takes: a batch's samples or views of them, of equal length."""
ModuleT = TypeVar("ModuleT")
Step = Callable[[ModuleT, Views, int], Terms]


@dataclass(frozen=True)
class _MicroBatches:
    """Rows that pass through networks in micro-batches."""

    rows: Rows
    size: int


def gradient_cached(step: Step[ModuleT]) -> Step[ModuleT]:
    """Cache the gradients of a `training_step` whose module's config has a `micro_batch_size`.

    The step takes the batch apart, has networks see it by `through` and returns the terms of a loss
    over what they gave. What has a gradient may be used only there: the loss trains no parameters
    of its own. Without a `micro_batch_size` the step is as it is written.

    Args:
        step: `training_step`, of batches that are tuples of rows (n, …).
    """

    @wraps(step)
    def cached(module: ModuleT, batch: Views, batch_idx: int) -> Terms:
        size: int | None = module.config.micro_batch_size  # type: ignore[attr-defined]
        if size is None:
            return step(module, batch, batch_idx)
        pieces: Any = tuple(_MicroBatches(rows, size) for rows in batch)
        return cached_loss(lambda: step(module, pieces, batch_idx))

    return cached


def through(network: Callable[..., Any], rows: Rows, *more: Any) -> Any:
    """Return a network's outputs for a batch, within a step that is `gradient_cached`.

    Args:
        network: A network, or a method of one: maps rows (m, …) to tensors (m, …), or to dicts,
            lists and tuples of them. Its own parameters are those that get a gradient.
        rows: One of the rows that the step was given.
        more: Further arguments of the network.
    """
    if not isinstance(rows, _MicroBatches):
        return network(rows, *more)
    owner: Any = getattr(network, "__self__", network)
    return represented(Segment(lambda piece: network(piece, *more), owner, rows.rows, rows.size))
