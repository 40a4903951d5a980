"""The server's optimiser, which takes a step towards the clients' mean.

The difference Δ = mean − slot is the pseudo-gradient. FedAvgM: Hsu et
al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification"
(2019). FedAdam, FedYogi and FedAdagrad: Reddi et al., "Adaptive Federated Optimization" (ICLR
2021), algorithm 2.

Running statistics of BatchNorm, and whatever else a phase calls untrained, are averaged and never
stepped. They are estimates, and a step could carry them past every client's value, a variance even
below 0.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from coterie.aggregation.stage import Kept, PhaseRun, Stage
from coterie.config.aggregation import AggregationConfig
from coterie.contract.phase import WeightedUpdate
from coterie.contract.roles import is_statistic


class ServerOptimizer(Stage):
    """Stage that takes the server's optimiser step from the clients' mean."""

    name: ClassVar[str] = "optimizer"

    def __init__(self, config: AggregationConfig) -> None:
        self._config = config

    def step(
        self, run: PhaseRun, means: Mapping[str, WeightedUpdate], kept: Kept
    ) -> tuple[Mapping[str, WeightedUpdate], Kept]:
        """Update every slot that clients contributed to.

        Computed in float64, then rounded to the slot's dtype. FedAvgM with learning rate 1 and no
        momentum gives the mean itself: bit for bit where mean and slot are float32 values whose
        magnitudes differ by a factor below 2^27, else to rounding.

        Args:
            run: The phase; `server` has the slots before it. What its phase calls untrained takes
                the mean.
            means: Slot to mean over the clients.
            kept: The optimiser's state, slot to float64 tensors: "m/<name>", and "v/<name>" if it
                is adaptive. A missing slot starts with its initial state.

        Returns:
            The stepped means, which the method's server half receives, and the optimiser's new
            state. Slots without contributions keep their state.
        """
        stepped, after = {}, {slot: dict(tensors) for slot, tensors in kept.items()}
        for slot, mean in means.items():
            moments, alone = after.setdefault(slot, {}), run.phase.untrained.get(slot, ())
            tensors = {
                name: value
                if is_statistic(name) or name in alone
                else _step(name, run.server[slot][name], value, moments, self._config)
                for name, value in mean.tensors.items()
            }
            stepped[slot] = WeightedUpdate(weight=mean.weight, tensors=tensors)
        return stepped, after


def adaptive(
    delta: Tensor, m: Tensor, v: Tensor, config: AggregationConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Return an adaptive direction m/(√v + τ), without bias correction, and its new moments.

    m ← β₁ m + (1 − β₁) Δ; initially m = 0 and v = τ². FedAdam: v ← β₂ v + (1 − β₂) Δ²; FedYogi:
    v ← v − (1 − β₂) Δ² sign(v − Δ²); FedAdagrad: v ← v + Δ².
    """
    m = config.beta_1 * m + (1 - config.beta_1) * delta
    square, rest = delta.square(), 1 - config.beta_2
    match config.optimizer:
        case "yogi":
            v = v - rest * square * torch.sign(v - square)
        case "adagrad":
            v = v + square
        case _:
            v = config.beta_2 * v + rest * square
    return m / (v.sqrt() + config.tau), m, v


def _step(
    name: str, value: Tensor, mean: Tensor, kept: dict[str, Tensor], config: AggregationConfig
) -> Tensor:
    """Return the tensor's new value, and write its new moments to `kept`.

    FedAvgM: m ← β m + Δ; the server moves by the learning rate times m.
    """
    before = value.double()
    delta = mean.double() - before
    m = kept.get(f"m/{name}", torch.zeros_like(delta))
    if config.optimizer == "momentum":
        direction = kept[f"m/{name}"] = config.momentum * m + delta
    else:
        v = kept.get(f"v/{name}", torch.full_like(delta, config.tau**2))
        direction, kept[f"m/{name}"], kept[f"v/{name}"] = adaptive(delta, m, v, config)
    return (before + config.step_size * direction).to(value.dtype)
