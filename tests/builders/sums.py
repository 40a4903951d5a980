"""Sums of a slot with three elements."""

import torch

from coterie.aggregation.exact import ExactMeans, Layout
from coterie.contract.phase import WeightedUpdate


def means_of(tensors, slot="s"):
    return ExactMeans({slot: Layout.of(tensors)})


def fold(contributions, dtype=torch.float32):
    means = means_of({"w": torch.zeros(3, dtype=dtype)})
    for values, weight in contributions:
        tensors = {"w": torch.tensor(values, dtype=dtype)}
        means.add(0, {"s": WeightedUpdate(weight=weight, tensors=tensors)})
    return means


def mean_of(means):
    return means.result()["s"].tensors["w"]


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).tolist()
