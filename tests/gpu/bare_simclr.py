"""FedSimCLR as one would write it without a framework: one loop over clients, epochs, batches."""

import copy
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.config.schema import RunConfig
from tests.benchmarks.training_rate import Rate

ROUNDS, EPOCHS = 2, 4


def contrast(one: Tensor, two: Tensor, temperature: float) -> Tensor:
    """NT-Xent over 2n views: the other view of an image is its class among all views but itself."""
    views = functional.normalize(torch.cat([one, two]), dim=1)
    similar = views @ views.T / temperature
    similar.fill_diagonal_(float("-inf"))
    count = len(one)
    others = torch.arange(2 * count, device=views.device).roll(count)
    return functional.cross_entropy(similar, others)


def train(net: nn.Module, draw: nn.Module, images: Tensor, batch: int, config: RunConfig) -> None:
    """Train a client's copy for its epochs; images lie on the device as bytes."""
    method, narrow = config.method, config.precision == "bf16-mixed"
    optimizer = torch.optim.SGD(
        net.parameters(),
        lr=method.learning_rate,
        momentum=method.sgd_momentum,
        weight_decay=method.weight_decay,
    )
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images), device=images.device).split(batch):
            with torch.no_grad():
                pixels = images[rows].float() / 255
                one, two = draw(pixels), draw(pixels)
            with torch.autocast(images.device.type, torch.bfloat16, enabled=narrow):
                loss = contrast(net(one).float(), net(two).float(), method.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def bare_rate(config: RunConfig, samples: np.ndarray, clients: int, batch: int) -> Rate:
    """Images a second of the second round, and the seconds of the first."""
    device = torch.device(config.accelerator)
    shape = samples.shape[1:]
    encoder = config.encoder.build(shape)
    hidden, width = config.method.hidden, config.method.projection
    head = nn.Sequential(nn.Linear(encoder.features, hidden), nn.ReLU(), nn.Linear(hidden, width))
    whole = nn.Sequential(encoder, head).to(device, memory_format=torch.channels_last)
    draw = config.augmentation.build(shape).to(device)
    parts = torch.from_numpy(samples).to(device).chunk(clients)
    times = [time.perf_counter()]
    for _ in range(ROUNDS):
        state = whole.state_dict()
        sums = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in state.items()}
        for images in parts:
            net = copy.deepcopy(whole)
            train(net, draw, images, batch, config)
            for name, value in net.state_dict().items():
                sums[name] += value / clients
        whole.load_state_dict(sums)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter())
    return Rate(EPOCHS * len(samples) / (times[2] - times[1]), times[1] - times[0])
