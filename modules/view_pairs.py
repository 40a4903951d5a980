"""Training on two random views of each sample, drawn on the device."""

from typing import Any

from torch import nn

from coterie.contract.clusterer import parameter_dtype
from coterie.gradcache import MicroBatched
from coterie.modules.client_module import ClientModule
from coterie.networks.views import batch_views


class ViewPairs(ClientModule):
    """A module whose steps take two views of each sample.

    Attributes:
        augment: Draws the views.
        config: With the size of micro-batches, for which views are drawn when they are needed.
    """

    augment: nn.Module
    config: MicroBatched

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw two views of each sample, on the device."""
        whole = self.config.micro_batch_size is None
        return batch_views(self.augment, batch, parameter_dtype(self), whole=whole)
