"""Aggregation by coordinate, which needs every client's update and not only their sum.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML 2018):
the coordinate-wise median (definition 1) and the coordinate-wise trimmed mean (definition 2). Each
client counts once, whatever its weight: a weight is what a faulty client would lie about first.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from coterie.config.aggregation import AggregationConfig, AggregationRule
from coterie.contract.phase import Mean, Tensors
from coterie.execution.events import Handle, TurnDone
from coterie.execution.exact import Layout
from coterie.execution.packing import Packed, pack, unpack


def summed(rule: AggregationRule, up: Mapping[str, Mean]) -> Mapping[str, Mean]:
    """What of a client's contributions goes into the exact sums, and with which weight."""
    if rule == "weighted":
        return up
    if rule == "equal":
        return {slot: Mean(weight=1, tensors=mean.tensors) for slot, mean in up.items()}
    return {}


def sent_whole(rule: AggregationRule, up: Mapping[str, Mean]) -> dict[str, Packed]:
    """What of a client's contributions the server is to see on its own: slot to tensors."""
    if rule in ("weighted", "equal"):
        return {}
    return {slot: pack(up[slot].tensors) for slot in sorted(up)}


def robust_means(
    turns: Sequence[TurnDone],
    layouts: Mapping[str, Layout],
    fetch: Callable[[Handle], Packed],
    config: AggregationConfig,
) -> dict[str, Mean]:
    """Each slot's median or trimmed mean over the clients that contributed to it.

    Tensor by tensor, so that no more than one tensor of all clients is copied at a time.

    Args:
        turns: The turns that count, in client order.
        layouts: Slot to its tensors' names and types.
        fetch: Reads what a handle refers to.
        config: The rule, and the share to trim.

    Returns:
        Slot to result, whose weight is the number of contributions. Empty unless turns hold
        updates of their own.
    """
    slots = sorted({slot for turn in turns for slot in turn.updates})
    means = {}
    for slot in slots:
        given = [unpack(fetch(turn.updates[slot])) for turn in turns if slot in turn.updates]
        means[slot] = Mean(weight=len(given), tensors=_join(given, layouts[slot], config))
    return means


def coordinate_median(stacked: Tensor) -> Tensor:
    """The median of each coordinate over the clients; of an even number the middle two's mean.

    Args:
        stacked: Floating (clients, …).

    Returns:
        float64 (…).
    """
    middle = (len(stacked) - 1) // 2
    return stacked.sort(dim=0).values[middle : len(stacked) - middle].double().mean(dim=0)


def trimmed_mean(stacked: Tensor, trim: float) -> Tensor:
    """The mean of each coordinate without its smallest and its largest values.

    Args:
        stacked: Floating (clients, …).
        trim: Share of the clients cut at each end, in [0, 0.5), rounded down to whole clients; as
            a decimal, so 0.29 of 100 are 29, although 0.29 * 100 is a little less in binary.

    Returns:
        float64 (…).
    """
    cut = math.floor(round(trim * len(stacked), 9))
    return stacked.sort(dim=0).values[cut : len(stacked) - cut].double().mean(dim=0)


def _join(given: Sequence[Tensors], layout: Layout, config: AggregationConfig) -> dict[str, Tensor]:
    joined = {}
    for name, dtype in zip(layout.names, layout.dtypes, strict=True):
        stacked = torch.stack([tensors[name] for tensors in given])
        if config.rule == "median":
            joined[name] = coordinate_median(stacked).to(dtype)
        else:
            joined[name] = trimmed_mean(stacked, config.trim).to(dtype)
    return joined
