"""Limits on how large a client's values and its weight may be."""

import math
from collections.abc import Mapping
from typing import ClassVar

from coterie.aggregation.exact import Layout, check_weight, magnitude, max_weights
from coterie.aggregation.stage import Contribution, PhaseRun, Stage, StageTask
from coterie.config.schema import RunConfig
from coterie.contract.phase import Tensors, WeightedUpdate
from coterie.contract.roles import is_variance
from coterie.errors import ContractError


class Limits(Stage):
    """Stage that refuses values far above the server's, and weights above a client's samples.

    Sums over samples have no scale of their own, and a median outvotes what is out of scale, so
    both are free of `faults.max_growth`. Weights count under `aggregation.rule=weighted` alone,
    and not where updates are clipped, which then weigh alike.
    """

    name: ClassVar[str] = "limits"

    def __init__(self, config: RunConfig) -> None:
        rule, dp = config.aggregation.rule, config.privacy.dp
        grows = type(config.method).sums or rule not in ("weighted", "equal")
        clips = dp.clip is not None and dp.unit == "client"
        self._growth = None if grows else config.faults.max_growth
        self._weighted = rule == "weighted" and not clips

    def request(self, run: PhaseRun) -> Mapping[str, tuple[float, ...]] | None:
        """Return the largest magnitude of each slot's tensors, in the layout's order."""
        if self._growth is None:
            return None
        return {
            slot: growth_limits(run.server[slot], layout.names, self._growth)
            for slot, layout in run.layouts.items()
        }

    def tasks(self, run: PhaseRun) -> Mapping[int, int]:
        """Return the largest weight of each client's contributions."""
        return max_weights(run.sizes, run.phase) if self._weighted else {}

    def weights(self, run: PhaseRun) -> Mapping[int, int]:
        """Return the largest weight of each client, after all stages."""
        return self.tasks(run) if self._weighted else dict.fromkeys(run.sizes, 1)

    def contribute(self, sent: Contribution, task: StageTask) -> Contribution:
        """Refuse a contribution beyond its limits."""
        for slot, mean in sent.up.items():
            limits = None if task.phase_data is None else task.phase_data[slot]
            largest = _check_values(slot, mean, task.layouts[slot], limits)
            if task.data is not None:
                check_weight(slot, task.layouts[slot], mean.weight, largest, task.data)
        return sent


def growth_limits(tensors: Tensors, names: tuple[str, ...], growth: float) -> tuple[float, ...]:
    """Return the largest magnitude that each returned tensor may have.

    Args:
        tensors: The server's own.
        names: Their order.
        growth: By how much the largest magnitude of all, at least 1, may grow; a variance counts by
            its root.
    """
    powers = [2 if is_variance(name) else 1 for name in names]
    pairs = zip(names, powers, strict=True)
    scale = max([1.0, *(magnitude(tensors[name]) ** (1 / power) for name, power in pairs)])
    return tuple((growth * scale) ** power for power in powers)


def _check_values(
    slot: str, mean: WeightedUpdate, layout: Layout, limits: tuple[float, ...] | None
) -> float:
    """Return the largest magnitude; raise if a tensor exceeds its limit."""
    largest = 0.0
    for name, limit in zip(layout.names, limits or [math.inf] * len(layout.names), strict=True):
        found = magnitude(mean.tensors[name])
        if found > limit:
            raise ContractError(
                f"Slot {slot!r}: {name!r} has a value of {found:.3g}, and faults.max_growth "
                f"allows at most {limit:.3g}; lower the learning rate, or the noise if some is "
                "added."
            )
        largest = max(largest, found)
    return largest
