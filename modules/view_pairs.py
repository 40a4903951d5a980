"""Training on two random views of each sample, drawn on the device."""

from collections.abc import Callable, Sequence
from typing import Any

from lightning import LightningModule
from torch import Tensor, nn

from coterie.contract.clusterer import parameter_dtype
from coterie.gradcache import MicroBatched, Rows, Segment
from coterie.networks.views import batch_views


class ViewPairs(LightningModule):
    """A LightningModule whose batches are pairs of views.

    Attributes:
        augment: Draws the views.
        config: With the size of micro-batches, for which views are drawn when they are needed.
    """

    augment: nn.Module
    config: MicroBatched

    def on_train_epoch_start(self) -> None:
        """Train mode, whatever the model was used for before."""
        self.train()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw two views of each sample, on the device."""
        whole = self.config.micro_batch_size is None
        return batch_views(self.augment, batch, parameter_dtype(self), whole=whole)


def pair_parts(
    represent: Callable[[Tensor], Any], networks: Sequence[nn.Module], views: tuple[Rows, Rows]
) -> dict[str, Segment]:
    """The parts "a" and "b" of a batch's loss: both views through the same networks."""
    return {name: Segment(represent, networks, v) for name, v in zip("ab", views, strict=True)}
