"""SimCLR and BYOL by lightly under Lightning's Trainer; prints its images a second.

`PYTHON peer_lightly.py DATA.npz '{"method": …}'`. Transforms, loss, heads and the momentum update
are lightly's; the encoder is Coterie's, which a program of lightly's would bring along.
"""

import copy
import json
import sys
import time

import lightning
import numpy as np
import torch
from lightly.loss import NegativeCosineSimilarity, NTXentLoss
from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead, SimCLRProjectionHead
from lightly.models.utils import deactivate_requires_grad, update_momentum
from lightly.transforms import SimCLRTransform
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from coterie.networks.encoders import ConvNet3, ConvNet4
from coterie.networks.resnet import ResNet

EPOCHS = 3
WIDTH = 256


class Pictures(Dataset):
    """Two views of each picture, as PIL draws them."""

    def __init__(self, pictures):
        colours = pictures.ndim == 4
        self.pictures = [Image.fromarray(picture) for picture in pictures]
        self.views = SimCLRTransform(
            input_size=pictures.shape[1],
            cj_prob=0.8 if colours else 0.0,
            cj_strength=0.5,
            min_scale=0.2,
            random_gray_scale=0.2 if colours else 0.0,
            gaussian_blur=0.0,
            normalize=None,
        )

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return self.views(self.pictures[index])


class SimCLR(lightning.LightningModule):
    def __init__(self, encoder):
        super().__init__()
        head = SimCLRProjectionHead(encoder.features, WIDTH, WIDTH, batch_norm=False)
        self.online = torch.nn.Sequential(encoder, head)
        self.criterion = NTXentLoss(temperature=0.1)

    def training_step(self, views, _):
        return self.criterion(*(self.online(view) for view in views))

    def configure_optimizers(self):
        return torch.optim.Adam((p for p in self.parameters() if p.requires_grad), lr=1e-3)


class BYOL(SimCLR):
    def __init__(self, encoder):
        super().__init__(encoder)
        self.online = torch.nn.Sequential(encoder, BYOLProjectionHead(encoder.features, 512, 512))
        self.predictor = BYOLPredictionHead(512, 64, 512)
        self.target = copy.deepcopy(self.online)
        deactivate_requires_grad(self.target)
        self.criterion = NegativeCosineSimilarity()

    def training_step(self, views, _):
        update_momentum(self.online, self.target, m=0.99)
        one, two = (self.predictor(self.online(view)) for view in views)
        with torch.no_grad():
            target_one, target_two = (self.target(view) for view in views)
        return self.criterion(one, target_two) + self.criterion(two, target_one)


METHODS = {"simclr": SimCLR, "byol": BYOL}
ENCODERS = {"conv3": ConvNet3(), "conv4": ConvNet4(), "resnet18": ResNet(depth=18, stem="small")}


class Clock(lightning.Callback):
    """The time when each epoch begins, and the last ends."""

    def __init__(self):
        self.times = []

    def on_train_epoch_start(self, *_):
        self.times.append(time.perf_counter())

    def on_train_end(self, *_):
        self.times.append(time.perf_counter())


def run(path, options):
    """Train and print the images a second of the epochs behind the first."""
    torch.set_num_threads(options["threads"])
    lightning.seed_everything(0, verbose=False)
    pictures = np.load(path)["pictures"]
    shape = (1 if pictures.ndim == 3 else pictures.shape[3], *pictures.shape[1:3])
    module = METHODS[options["method"]](ENCODERS[options["encoder"]].build(shape))
    form = torch.channels_last if options["channels_last"] else torch.contiguous_format
    module = module.to(memory_format=form)
    loader = DataLoader(
        Pictures(pictures),
        batch_size=options["batch"],
        shuffle=True,
        drop_last=True,
        num_workers=options["workers"],
        persistent_workers=options["workers"] > 0,
    )
    clock = Clock()
    lightning.Trainer(
        accelerator=options["accelerator"],
        max_epochs=EPOCHS,
        precision=options["precision"],
        callbacks=[clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module, loader)
    images = (EPOCHS - 1) * len(loader) * options["batch"]
    sys.stdout.write(f"{images / (clock.times[-1] - clock.times[1])}\n")


if __name__ == "__main__":
    run(sys.argv[1], json.loads(sys.argv[2]))
