"""The server's own optimiser: a step towards the clients' mean instead of the mean itself.

The mean's distance to the server's slot is the pseudo-gradient Δ = mean − slot. FedAvgM: Hsu et
al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification"
(2019). FedAdam: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), algorithm 2.

Running statistics of BatchNorm are averaged and never stepped: they are no parameters but
estimates, which a step would carry past what any client saw, a variance even below 0.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.config.aggregation import AggregationConfig
from coterie.contract.phase import Mean, Slots, Tensors

_STATISTICS = ("running_mean", "running_var")

Moments = dict[str, dict[str, Tensor]]
"""Slot to float64 tensors by name: "m/<name>", and for FedAdam "v/<name>"."""


def server_step(
    slots: Slots,
    means: Mapping[str, Mean],
    moments: Mapping[str, Tensors],
    config: AggregationConfig,
) -> tuple[dict[str, Mean], Moments]:
    """One step of every slot that clients contributed to.

    Computed in float64, then rounded to the slot's type. FedAvgM with a learning rate of 1 and no
    momentum gives the mean itself, to the bit where mean and slot are float32 values whose sizes
    differ by less than 2^27, else to rounding.

    Args:
        slots: The server's slots before the phase.
        means: Slot to mean over the clients.
        moments: The optimiser's state; a slot that it lacks starts anew.
        config: The optimiser and its constants.

    Returns:
        What the method's server half is given in place of the means, and the optimiser's state
        after it. Slots without contributions keep theirs.
    """
    if config.optimizer == "none":
        return dict(means), {slot: dict(kept) for slot, kept in moments.items()}
    stepped, after = {}, {slot: dict(kept) for slot, kept in moments.items()}
    for slot, mean in means.items():
        kept = after.setdefault(slot, {})
        tensors = {
            name: value
            if name.rpartition(".")[2] in _STATISTICS
            else _step(name, slots[slot][name], value, kept, config)
            for name, value in mean.tensors.items()
        }
        stepped[slot] = Mean(weight=mean.weight, tensors=tensors)
    return stepped, after


def fedavgm(delta: Tensor, velocity: Tensor, momentum: float) -> Tensor:
    """FedAvgM's velocity v ← β v + Δ; the server moves by learning rate times v."""
    return momentum * velocity + delta


def fedadam(
    delta: Tensor, m: Tensor, v: Tensor, config: AggregationConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """FedAdam's direction m/(√v + τ), without bias correction, and its new moments.

    m ← β₁ m + (1 − β₁) Δ and v ← β₂ v + (1 − β₂) Δ²; at first m = 0 and v = τ².
    """
    m = config.beta_1 * m + (1 - config.beta_1) * delta
    v = config.beta_2 * v + (1 - config.beta_2) * delta.square()
    return m / (v.sqrt() + config.tau), m, v


def _step(
    name: str, value: Tensor, mean: Tensor, kept: dict[str, Tensor], config: AggregationConfig
) -> Tensor:
    """The tensor's new value; `kept` takes its new moments."""
    before = value.double()
    delta = mean.double() - before
    m = kept.get(f"m/{name}", torch.zeros_like(delta))
    if config.optimizer == "momentum":
        direction = kept[f"m/{name}"] = fedavgm(delta, m, config.momentum)
    else:
        v = kept.get(f"v/{name}", torch.full_like(delta, config.tau**2))
        direction, kept[f"m/{name}"], kept[f"v/{name}"] = fedadam(delta, m, v, config)
    return (before + config.step_size * direction).to(value.dtype)
