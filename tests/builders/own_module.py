"""A user's module and data, as one would write them without a thought of federating them."""

import lightning
import torch
import torchmetrics
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from coterie import Federation

torch.set_num_threads(1)
SIZE, HELD = 48, 16
QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}
"""A plain Trainer that only trains."""


def tensors(count=SIZE, seed=0):
    """Points of three classes."""
    generator = torch.Generator().manual_seed(seed)
    way = torch.randn(4, 3, generator=torch.Generator().manual_seed(9))
    points = torch.randn(count, 4, generator=generator)
    return points, (points @ way).argmax(dim=1)


class Lit(lightning.LightningModule):
    """A classifier with what such modules have: norm, metric, hyperparameters, scheduler."""

    def __init__(self, lr=0.05, gamma=0.5):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)

    def forward(self, points):
        return self.head(self.body(points))

    def training_step(self, batch, batch_idx):
        points, labels = batch
        loss = cross_entropy(self(points), labels)
        self.log_dict({"train_loss": loss}, on_step=True, on_epoch=True)
        self.log("at_epoch", float(self.current_epoch))
        self.log("at_step", float(self.global_step))
        self.log("rate", self.trainer.optimizers[0].param_groups[0]["lr"])
        return loss

    def validation_step(self, batch, batch_idx):
        points, labels = batch
        self.accuracy(self(points), labels)
        self.log("val_acc", self.accuracy)
        self.log("val_loss", cross_entropy(self(points), labels))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.hparams.gamma)
        return [optimizer], [scheduler]


class Data(lightning.LightningDataModule):
    """A data module with training, validation and test loaders, and a hook."""

    def __init__(self, shuffle=True, batch_size=8):
        super().__init__()
        self.shuffle, self.batch_size = shuffle, batch_size

    def setup(self, stage):
        self.train, self.held = TensorDataset(*tensors()), TensorDataset(*tensors(HELD, 1))

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=self.shuffle)

    def val_dataloader(self):
        return DataLoader(self.held, self.batch_size)

    def test_dataloader(self):
        return DataLoader(self.held, self.batch_size)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] * 2, batch[1]


class Annotated(Lit):
    """One whose hyperparameters say of what type they are."""

    def __init__(self, lr: float = 0.05, gamma: float | None = None, name: str = "x"):
        super().__init__(lr, gamma or 0.5)


def federated(folder, module=None, data=None, **keys):
    """The result of a small run in this process."""
    torch.manual_seed(0)
    keys = {"clients": 2, "rounds": 2, "cluster": {"backend": "serial"}, **keys}
    quiet = ["tracking.progress=none", "evaluation.figures=false", *keys.pop("overrides", ())]
    return Federation(
        module=Lit() if module is None else module,
        data=Data() if data is None else data,
        run_dir=folder,
        overrides=quiet,
        **keys,
    ).run()


def rows(run, phase="training", scope="server"):
    """The rows of a phase in a run's history."""
    return [r for r in run.history.to_pylist() if (r["phase"], r["scope"]) == (phase, scope)]
