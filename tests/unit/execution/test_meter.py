"""The meter: means in float64, in the order of the steps."""

import weakref

import torch

from coterie.execution.meter import Meter


def test_means_are_those_of_a_plain_float64_sum():
    values = (torch.randn(700, generator=torch.Generator().manual_seed(0)) * 1e3).tolist()
    meter, total = Meter(), 0.0
    for value in values:
        loss = torch.tensor(value, requires_grad=True)
        meter.add({"loss": loss, "twice": 2 * loss})
        total += loss.item()
    fit = meter.fit()
    assert fit.steps == 700
    assert fit.metrics == {"loss": total / 700, "twice": 2 * total / 700}


def test_a_bare_loss_and_plain_numbers_are_taken_and_no_graph_is_kept():
    meter, weight = Meter(), torch.ones(1_000, requires_grad=True)
    meter.add(weight.sum())
    meter.add({"loss": 2.0})
    kept = weakref.ref(weight)
    del weight
    assert kept() is None
    assert meter.fit().metrics == {"loss": 501.0}


def test_nothing_was_measured():
    assert (Meter().fit().steps, Meter().fit().metrics) == (0, {})
