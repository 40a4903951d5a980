"""CF-CL where not every device is averaged, or not every device is there."""

from typing import Any

import pytest
import torch

from coterie.config.participation import ParticipationConfig
from coterie.contract import Mean
from coterie.execution.exact import ExactMeans, Layout
from modules.cfcl import CFCL, weight_unit
from tests.small_cfcl import encoder, ran, short, turns
from tests.small_federation import Federated, same_bits, tiny_task

IDLE: list[dict[str, Any]] = [
    {"exchange": "explicit", "budget": 0},
    {"exchange": "bulk", "budget": 0},
    {"exchange": "implicit", "regulariser": 0.0},
    {"exchange": "implicit", "regulariser": 0.0, "pull_every": 1},
]


def averaged(federated: Federated) -> list[int]:
    return [turn.client.id for turn in turns(federated, "aggregate")]


@pytest.mark.parametrize(
    "some",
    [{"participation": 0.5}, {"run": {"participation": ParticipationConfig(fraction=0.5)}}],
    ids=["averaged", "there"],
)
def test_what_is_exchanged_does_not_decide_who_is_averaged(some: dict[str, Any]) -> None:
    alone = ran(exchange="none", **some)
    assert len(averaged(alone)) == 3 * 2
    for changes in IDLE:
        idle = ran(**changes, **some)
        assert averaged(idle) == averaged(alone)
        assert same_bits(encoder(idle), encoder(alone))


def test_who_is_drawn_for_a_round_is_there_in_all_of_it() -> None:
    done = ran(run={"participation": ParticipationConfig(count=1)})
    for number in (1, 2, 3):
        there = {turn.client.id for turn in done.spy.turns if turn.phase.round == number}
        assert len(there) == 1
    assert len(averaged(done)) == 3
    assert all(turn.outcome.up for turn in turns(done, "aggregate"))


def test_a_device_that_missed_the_push_makes_up_for_it() -> None:
    late = {"participation": ParticipationConfig(availability=((0, 1), *[(0, 1, 2)] * 4))}
    done = ran(run=late, exchange="explicit", total_steps=12, pull_every=3)
    sent = [
        (turn.phase.name, turn.phase.round)
        for turn in done.spy.turns
        for letter in turn.outcome.mail.values()
        if turn.client.id == 2 and "reserve_samples" in letter
    ]
    assert sent == [("pull", 2)] * 2  # once, to both neighbours
    kept = done.kept
    for device in (0, 1):
        assert kept[device]["reserves/2"].shape[0] == 4
    # What the others pushed in the first round waited for it.
    assert {"reserves/0", "reserves/1"} <= set(kept[2])


def test_reserve_embeddings_of_an_earlier_model_are_not_used() -> None:
    """Device 2 is away when new ones are pushed: the others choose for it without."""
    away = {"participation": ParticipationConfig(availability=((0, 1, 2), (0, 1, 2), (0, 1)))}
    done = ran(run=away, exchange="implicit")
    assert "reserves/2" not in done.kept[0]
    assert "reserves/1" in done.kept[0]


def test_without_exchange_weights_are_counted_as_without_a_budget() -> None:
    def unit(**changes: Any) -> int:
        options = {"aggregate_every": 25, "topology": "complete", "approx_size": 50}
        method = CFCL(short(**options, **changes), tiny_task())
        return int(method.init(dict.fromkeys(range(10), 33_554), 0).slots["setup"]["unit"])

    assert unit(exchange="none", budget=50) == unit(exchange="explicit", budget=0) == 1
    assert unit(exchange="explicit", budget=50) == 2


@pytest.mark.parametrize("exchange", ["bulk", "explicit", "implicit"])
def test_weights_stay_in_the_range_of_exact_sums_however_much_is_pulled(exchange: str) -> None:
    config = {"total_steps": 2000, "aggregate_every": 25, "pull_every": 25, "budget": 50}
    config |= {"approx_size": 50}
    method = CFCL(short(exchange=exchange, topology="complete", **config), tiny_task())
    sizes = dict.fromkeys(range(10), 6_000)
    unit = int(method.init(sizes, 0).slots["setup"]["unit"])
    pulled = {"bulk": 9 * 50 * 80, "explicit": 9 * 50, "implicit": 0}[exchange]
    weight = max(1, (6_000 + pulled) * 25 // unit)
    means = ExactMeans({"encoder": Layout.of({"a": torch.ones(1)})})
    for _ in sizes:
        means.add({"encoder": Mean(weight=weight, tensors={"a": torch.ones(1)})})
    assert means.result()["encoder"].weight == 10 * weight
    assert unit == (2 if exchange == "bulk" else 1)


def test_of_many_small_devices_each_counts() -> None:
    """Most of a hundred thousand weigh less than the unit, which is 1 at the least."""
    devices, samples = 10**5, 10**8
    unit = weight_unit(samples, 25, devices)
    small, large = (devices - 1) * max(1, 3 * 25 // unit), (samples - 3 * devices) * 25 // unit
    assert small + large <= 2**23
