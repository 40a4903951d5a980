"""A module that several processes train together; they import it by its path."""

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy


class OnDevices(lightning.LightningModule):
    """A classifier that logs the number of processes."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def training_step(self, batch, batch_idx):
        self.log("processes", float(self.trainer.world_size))
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.log("mean", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
