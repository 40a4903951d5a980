"""Strategies against their papers' equations, in slow loops over plain numbers of float64."""

import lightning
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from coterie.errors import ConfigError
from tests.builders.own_module import federated, rows

RATE, ROUNDS = 0.1, 3
POINTS = [torch.tensor([[1.0, 2.0], [0.5, -1.0], [2.0, 0.0], [1.0, 1.0]], dtype=torch.float64)]
POINTS += [torch.tensor([[-1.0, 0.5], [3.0, 1.0]], dtype=torch.float64)]
TARGETS = [POINTS[0] @ torch.tensor([1.0, -1.0], dtype=torch.float64)]
TARGETS += [POINTS[1] @ torch.tensor([-2.0, 0.5], dtype=torch.float64)]
SIZES = [4, 2]
STEPS = [2, 1]
"""Batches of two: the first client takes two steps a round."""


class Linear(lightning.LightningModule):
    def __init__(self, momentum=0.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64))
        self.momentum = momentum

    def training_step(self, batch, batch_idx):
        return 0.5 * ((batch[0] @ self.weight - batch[1]) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=RATE, momentum=self.momentum)


def gradient(client, step, w):
    x, y = (part[2 * step : 2 * step + 2] for part in (POINTS[client], TARGETS[client]))
    return ((x @ w - y)[:, None] * x).mean(dim=0)


def run(folder, **keys):
    momentum = keys.pop("momentum", 0.0)
    data = [DataLoader(TensorDataset(*pair), 2) for pair in zip(POINTS, TARGETS, strict=True)]
    found = federated(folder, Linear(momentum), data, rounds=ROUNDS, **keys)
    return found.module.weight.detach(), found


def steps(client, w, correction, momentum=0.0, seen=None):
    y, velocity = w.clone(), torch.zeros(2, dtype=torch.float64)
    for step in range(STEPS[client]):
        found = gradient(client, step, y)
        if seen is not None:
            seen.append(found)
        velocity = momentum * velocity + found + correction(y)
        y = y - RATE * velocity
    return y


def fedprox(w, mu):
    for _ in range(ROUNDS):
        ends = [steps(k, w, lambda y, w=w: mu * (y - w)) for k in (0, 1)]
        w = sum(n * y for n, y in zip(SIZES, ends, strict=True)) / sum(SIZES)
    return w


def scaffold(w):
    c, own = torch.zeros_like(w), [torch.zeros_like(w) for _ in SIZES]
    for _ in range(ROUNDS):
        ends = [steps(k, w, lambda y, c=c, i=own[k]: c - i) for k in (0, 1)]
        new = [own[k] - c + (w - ends[k]) / (STEPS[k] * RATE) for k in (0, 1)]
        c = c + sum(new[k] - own[k] for k in (0, 1)) / 2
        own, w = new, sum(ends) / 2
    return w


def scaffold_of_gradients(w, momentum):
    """Control variates are the clients' mean gradients; without momentum this is option II."""
    c, own = torch.zeros_like(w), [torch.zeros_like(w) for _ in SIZES]
    for _ in range(ROUNDS):
        ends, new = [], []
        for k in (0, 1):
            seen = []
            y = steps(k, w, lambda y, c=c, i=own[k]: c - i, momentum, seen)
            ends.append(y)
            new.append(sum(seen) / len(seen))
        c = c + sum(new[k] - own[k] for k in (0, 1)) / 2
        own, w = new, sum(ends) / 2
    return w


def fednova(w, momentum):
    # Each step's gradient counts as often as it is taken over by later velocities.
    lengths = [sum(sum(momentum**j for j in range(t - s)) for s in range(t)) for t in STEPS]
    for _ in range(ROUNDS):
        shares = [n / sum(SIZES) for n in SIZES]
        ends = [steps(k, w, lambda y: 0.0, momentum) for k in (0, 1)]
        mean = sum(shares[k] * (w - ends[k]) / lengths[k] for k in (0, 1))
        w = w - sum(shares[k] * lengths[k] for k in (0, 1)) * mean
    return w


def feddyn(w, alpha):
    h, own = torch.zeros_like(w), [torch.zeros_like(w) for _ in SIZES]
    for _ in range(ROUNDS):
        ends = [steps(k, w, lambda y, w=w, i=own[k]: alpha * (y - w) - i) for k in (0, 1)]
        own = [own[k] - alpha * (ends[k] - w) for k in (0, 1)]
        h = h - alpha * sum(ends[k] - w for k in (0, 1)) / 2
        w = sum(ends) / 2 - h / alpha
    return w


def server_optimizer(w, step, rate, tau=1e-3):
    """Federated averaging whose server steps by `step`: moments and Δ to direction and moments."""
    moments = [(0.0, tau**2)] * 2
    for _ in range(ROUNDS):
        ends = [steps(k, w, lambda y: 0.0) for k in (0, 1)]
        mean = sum(n * y for n, y in zip(SIZES, ends, strict=True)) / sum(SIZES)
        found = [step(*moments[i], float(mean[i] - w[i])) for i in (0, 1)]
        moments = [each[1:] for each in found]
        w = w + rate * torch.tensor([each[0] for each in found], dtype=torch.float64)
    return w


def fedavgm(m, v, delta):
    return 0.9 * m + delta, 0.9 * m + delta, v


def adaptive(second):
    """A step of algorithm 2 of Reddi et al., of one number."""

    def step(m, v, delta):
        m, v = 0.9 * m + 0.1 * delta, second(v, delta**2)
        return m / (v**0.5 + 1e-3), m, v

    return step


FEDADAM = adaptive(lambda v, square: 0.99 * v + 0.01 * square)
FEDYOGI = adaptive(lambda v, square: v - 0.01 * square * ((v > square) - (v < square)))
FEDADAGRAD = adaptive(lambda v, square: v + square)


START = torch.tensor([0.3, -0.2], dtype=torch.float64)


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({}, lambda: fedprox(START, 0.0)),
        ({"strategy": "fedprox", "mu": 0.7}, lambda: fedprox(START, 0.7)),
        ({"strategy": "scaffold"}, lambda: scaffold(START)),
        ({"strategy": "scaffold", "momentum": 0.9}, lambda: scaffold_of_gradients(START, 0.9)),
        ({"strategy": "fednova"}, lambda: fednova(START, 0.0)),
        ({"strategy": "fednova", "momentum": 0.9}, lambda: fednova(START, 0.9)),
        ({"strategy": "feddyn"}, lambda: feddyn(START, 0.01)),
        ({"strategy": "fedavgm"}, lambda: server_optimizer(START, fedavgm, 1.0)),
        ({"strategy": "fedadam"}, lambda: server_optimizer(START, FEDADAM, 0.01)),
        ({"strategy": "fedyogi"}, lambda: server_optimizer(START, FEDYOGI, 0.01)),
        ({"strategy": "fedadagrad"}, lambda: server_optimizer(START, FEDADAGRAD, 0.01)),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_strategy_is_its_papers(tmp_path, keys, wanted):
    found, _ = run(tmp_path, **keys)
    torch.testing.assert_close(found, wanted(), rtol=1e-9, atol=1e-9)


def test_the_mean_gradient_is_option_two_of_scaffold():
    torch.testing.assert_close(scaffold_of_gradients(START, 0.0), scaffold(START))


def test_control_variates_are_counted(tmp_path):
    _, found = run(tmp_path, strategy="scaffold")
    first = rows(found)[0]
    assert first["bytes/up/strategy"] == first["bytes/up/module"] == 2 * (16 + 8)
    assert first["bytes/down/strategy"] == 2 * 16


def test_feddyn_sends_nothing_more(tmp_path):
    _, found = run(tmp_path, strategy="feddyn")
    assert "bytes/up/strategy" not in found.history.column_names


class WithBuffer(Linear):
    """One with a moving average of its own, which no step trains."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def training_step(self, batch, batch_idx):
        self.mean += batch[1].mean()
        return super().training_step(batch, batch_idx)


def test_a_servers_optimiser_leaves_buffers_at_their_mean(tmp_path):
    data = [DataLoader(TensorDataset(*pair), 4) for pair in zip(POINTS, TARGETS, strict=True)]
    found = federated(tmp_path, WithBuffer(), data, rounds=1, strategy="fedyogi").module
    mean = (4 * TARGETS[0].mean() + 2 * TARGETS[1].mean()) / 6
    torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("strategy", ["scaffold", "fednova", "feddyn"])
def test_one_of_two_takes_the_servers_step(tmp_path, strategy):
    with pytest.raises(ConfigError, match=r"aggregation\.optimizer=yogi: .*leave one of the two"):
        run(tmp_path, strategy=strategy, overrides=["aggregation.optimizer=yogi"])


def test_an_unknown_strategy_names_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"strategy=fedprocs: .*did you mean fedprox\?"):
        run(tmp_path, strategy="fedprocs")


def test_clipping_is_not_for_strategies(tmp_path):
    keys = ["privacy.dp.clip=0.5", "privacy.dp.noise_multiplier=0.5"]
    with pytest.raises(ConfigError, match=r"method\.strategy sends more"):
        run(tmp_path, strategy="scaffold", overrides=keys)
