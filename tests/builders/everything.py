"""A LightningModule that uses all that both local trainers support, and logs every hook."""

import numpy as np
import torch
from lightning import LightningModule
from torch import nn

from coterie.contract.client import ClientData, Plan
from coterie.contract.seeds import seeded
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.batches import SeededBatches
from coterie.execution.trainer import LightningTrainer

SIZE = 23


class Everything(LightningModule):
    """Batch norm, dropout, a frozen part in eval mode, seeded views, an EMA, all hooks logged."""

    def __init__(self, optimizer="adam"):
        super().__init__()
        self.kind, self.log_of_hooks = optimizer, []
        self.net = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
        )
        self.frozen = nn.BatchNorm1d(4)
        self.frozen.requires_grad_(False).eval()
        self.register_buffer("average", torch.zeros(8, 4))

    def note(self, *what):
        self.log_of_hooks.append(what)

    def configure_optimizers(self):
        parameters = self.net.parameters()
        if self.kind == "adam":
            return torch.optim.Adam(parameters, lr=0.01, weight_decay=0.1)
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True)

    def on_train_start(self):
        self.note("on_train_start", torch.initial_seed())

    def on_train_epoch_start(self):
        self.note("on_train_epoch_start", self.net.training, self.frozen.training)

    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.note("on_before_batch_transfer", batch["samples"].dtype, dataloader_idx)
        return batch

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        self.note("transfer_batch_to_device", device.type, dataloader_idx)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.note("on_after_batch_transfer", batch["seed"], dataloader_idx)
        with seeded(batch["seed"]):
            noise = torch.randn(batch["samples"].shape)
        return {"x": batch["samples"] + noise.to(batch["samples"]), "seed": batch["seed"]}

    def on_train_batch_start(self, batch, batch_idx):
        self.note("on_train_batch_start", tuple(batch["x"].shape), batch_idx)

    def training_step(self, batch, batch_idx):
        self.note("training_step", batch_idx, torch.is_autocast_enabled("cpu"))
        self.note("default", torch.get_default_dtype(), torch.is_grad_enabled())
        out = self.net(self.frozen(batch["x"])) + torch.randn(3)
        self.note("computed in", out.dtype, self.net[0](batch["x"]).dtype)
        loss = out.square().mean()
        return {"loss": loss, "norm": out.detach().norm()}

    def on_before_zero_grad(self, optimizer):
        self.note("on_before_zero_grad", type(optimizer).__name__, self.gradient())

    def on_before_backward(self, loss):
        self.note("on_before_backward", loss.item(), loss.requires_grad)

    def on_after_backward(self):
        self.note("on_after_backward", self.gradient())

    def on_before_optimizer_step(self, optimizer):
        self.note("on_before_optimizer_step", type(optimizer).__name__, self.gradient())

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.average.lerp_(self.net[0].weight.detach(), 0.1)
        seen = {name: value.item() for name, value in outputs.items()}
        self.note("on_train_batch_end", seen, outputs["loss"].requires_grad, batch_idx)

    def on_train_epoch_end(self):
        self.note("on_train_epoch_end")

    def on_train_end(self):
        self.note("on_train_end")

    def gradient(self):
        grad = self.net[0].weight.grad
        return None if grad is None else grad.double().sum().item()


def batches(**plan):
    samples = np.random.default_rng(0).normal(size=(SIZE, 4)).astype(np.float32)
    data = ClientData(samples=samples, rows=np.arange(SIZE))
    return SeededBatches(data, Plan(batch_size=5, **(plan or {"epochs": 2})), seed=9)


def fresh(kind, *args):
    with seeded(4):
        return kind(*args)


def train(trainer, module, **plan):
    fit = trainer.fit(module, batches(**plan), seed=17)
    return module, fit


def both(kind, *args, precision="32-true", **plan):
    """The same module trained by Lightning and by the plain loop."""
    trainers = LightningTrainer(precision=precision), BareTrainer(precision=precision)
    return [train(trainer, fresh(kind, *args), **plan) for trainer in trainers]
