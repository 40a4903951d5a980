"""What crosses the network in CP-CFL: every key and every shape, in every turn, and its bytes."""

from typing import Any

import pytest

from modules.classification import RULES, Classification
from tests.small_federation import SIZES, Federated
from tests.small_pool import pool_workload, ran_with, short, short_ifca

ENCODER = {
    "encoder.network.1.weight": (8, 64),
    "encoder.network.2.weight": (8,),
    "encoder.network.2.bias": (8,),
    "encoder.network.2.running_mean": (8,),
    "encoder.network.2.running_var": (8,),
    "encoder.network.4.weight": (6, 8),
    "encoder.network.4.bias": (6,),
}
HEAD = {"classifier.weight": (3, 6), "classifier.bias": (3,)}
ENCODER_BYTES = 8 * (64 * 8 + 4 * 8 + 6 * 9)
HEAD_BYTES = 8 * 3 * 7
CLIENTS = len(SIZES)


@pytest.fixture(scope="module")
def ran() -> Federated:
    return ran_with(short(rounds=4, explore_rounds=2))


def shapes(slots: Any) -> dict[str, dict[str, tuple[int, ...]]]:
    return {
        slot: {name: tuple(value.shape) for name, value in tensors.items()}
        for slot, tensors in slots.items()
    }


def test_exactly_these_tensors_cross(ran: Federated) -> None:
    heads = {"head/0": HEAD, "head/1": HEAD}
    assert len(ran.spy.turns) == 4 * CLIENTS
    for turn in ran.spy.turns:
        outcome, round_ = turn.outcome, turn.phase.round
        choice = int(outcome.records["choice"])
        encoders = {"encoder/0": ENCODER} | ({"encoder/1": ENCODER} if round_ == 4 else {})
        assert shapes(turn.slots) == heads | encoders
        up = {f"head/{choice}": HEAD} | ({f"encoder/{choice}": ENCODER} if round_ > 2 else {})
        assert shapes({slot: mean.tensors for slot, mean in outcome.up.items()}) == up
        assert set(outcome.records) == {"choice"}
        assert outcome.records["choice"].shape == ()
        assert set(outcome.metrics) == {"loss"}
        assert (outcome.state, outcome.mail) == (None, {})


def test_every_state_entry_has_a_rule_and_no_bookkeeping_crosses(ran: Federated) -> None:
    workload = pool_workload(short())
    RULES.check(Classification(short(), workload.task))
    sent = [name for turn in ran.spy.turns for tensors in turn.slots.values() for name in tensors]
    assert not [name for name in sent if "num_batches" in name]


def counted(ran: Federated, round_: int) -> tuple[int, int]:
    """How many of the heads are news in a round, and of the encoders."""
    if round_ == 1:
        return 2, 1
    before = set(ran.spy.client_groups(ran.state.server)[round_ - 1])
    return len(before), 0 if round_ < 4 else len(before | {1})


def test_bytes_are_those_counted_by_hand(ran: Federated) -> None:
    for round_, commit in enumerate(ran.commits, start=1):
        heads, encoders = counted(ran, round_)
        traffic = commit.traffic
        down = CLIENTS * (heads * HEAD_BYTES + encoders * ENCODER_BYTES)
        assert sum(traffic.down.values()) == down, round_
        up = CLIENTS * (HEAD_BYTES + 8 + 8 + 8)  # weight, choice, one metric
        up += CLIENTS * (ENCODER_BYTES + 8) if round_ > 2 else 0
        assert sum(traffic.up.values()) == up, round_


def test_while_they_explore_clients_are_sent_one_encoder() -> None:
    """IFCA sends N whole models in every round that changes them: (N + 1) S of eq. (15)."""
    ours = ran_with(short(rounds=2, explore_rounds=2)).commits
    theirs = ran_with(short_ifca(rounds=2)).commits
    whole = ENCODER_BYTES + HEAD_BYTES
    assert sum(theirs[0].traffic.down.values()) == CLIENTS * 2 * whole
    assert sum(ours[0].traffic.down.values()) == CLIENTS * (ENCODER_BYTES + 2 * HEAD_BYTES)
    assert all(slot.startswith("head/") for slot in ours[1].traffic.down)
