"""What crosses the network in Orchestra: every key and every shape, in every turn."""

from typing import Any

import pytest

from modules.orchestra import RULES, Orchestra
from modules.orchestra_model import OrchestraModel
from tests.small_federation import SIZES, Federated, federate, tiny_task, tiny_workload

L, G, D, H, M = 3, 4, 5, 7, 16
BRANCH = {
    "encoder.network.1.weight": (8, 64),
    "encoder.network.2.weight": (8,),
    "encoder.network.2.bias": (8,),
    "encoder.network.2.running_mean": (8,),
    "encoder.network.2.running_var": (8,),
    "encoder.network.4.weight": (6, 8),
    "encoder.network.4.bias": (6,),
    "projector.0.weight": (H, 6),
    "projector.1.weight": (H,),
    "projector.1.bias": (H,),
    "projector.1.running_mean": (H,),
    "projector.1.running_var": (H,),
    "projector.3.weight": (D, H),
    "projector.4.running_mean": (D,),
    "projector.4.running_var": (D,),
}
NETWORKS = {
    "online": {f"online.{name}": shape for name, shape in BRANCH.items()},
    "target": {f"target.{name}": shape for name, shape in BRANCH.items()},
    "rotation": {"rotation.weight": (4, D), "rotation.bias": (4,)},
}


def ran_with(**changes: Any) -> Federated:
    config = Orchestra.Config(
        projection=D, hidden=H, batch_size=8, rounds=2, epochs=1, participation=1.0,
        local_clusters=L, global_clusters=G, global_steps=5, memory=M, **changes,
    )  # fmt: skip
    return federate(tiny_workload(config))


@pytest.fixture(scope="module")
def ran() -> Federated:
    return ran_with()


def shapes(slots: Any) -> dict[str, dict[str, tuple[int, ...]]]:
    return {
        slot: {name: tuple(value.shape) for name, value in tensors.items()}
        for slot, tensors in slots.items()
    }


def test_exactly_these_tensors_cross(ran: Federated) -> None:
    assert len(ran.spy.turns) == 3 * len(SIZES)
    extra = {"centroids": {"centroids": (G, D)}, "schedule": {"epochs": (1,)}}
    for turn in ran.spy.turns:
        outcome, down = turn.outcome, shapes(turn.slots)
        up = shapes({slot: mean.tensors for slot, mean in outcome.up.items()})
        if turn.phase.name == "clustering":
            assert (down, up) == ({"target": NETWORKS["target"]}, {})
            assert set(outcome.metrics) == {"smallest_cluster"}
        else:
            assert (down, up) == (NETWORKS | extra, NETWORKS)
            assert set(outcome.metrics) == {"loss", "cluster", "rotation", "smallest_cluster"}
        assert shapes({"sent": outcome.records}) == {"sent": {"centroids": (L, D)}}
        assert (outcome.state, outcome.mail) == (None, {})


def test_representations_leave_only_in_the_idealised_variant(ran: Federated) -> None:
    ideal = ran_with(privacy="none")
    for turn in ideal.spy.turns:
        assert set(turn.outcome.records) == {"representations"}
        assert turn.outcome.metrics["smallest_cluster"] == 1.0
    rows = {t.client.id: len(t.outcome.records["representations"]) for t in ideal.spy.turns[:3]}
    assert rows == {0: 13, 1: 16, 2: 8}
    # A centroid is the mean of four rows or more here, never one of them.
    for turn, other in zip(ran.spy.turns[:2], ideal.spy.turns[:2], strict=True):
        sent, kept = turn.outcome.records["centroids"], other.outcome.records["representations"]
        assert (sent @ kept.T).max() < 1 - 1e-6


def test_every_state_entry_has_a_rule_and_the_memory_belongs_to_no_slot() -> None:
    module = OrchestraModel(Orchestra.Config(), tiny_task())
    RULES.check(module)
    assert {name for name in module.state_dict() if not RULES.of(name).slot} == {
        "memory",
        "remembered",
        *(name for name in module.state_dict() if "num_batches" in name),
        *(name for name in module.state_dict() if name.startswith("augment.")),
    }


def test_bytes_are_those_counted_by_hand(ran: Federated) -> None:
    branch = 64 * 8 + 4 * 8 + 6 * 9 + H * 6 + 4 * H + D * H + 2 * D
    size = {"online": 8 * branch, "target": 8 * branch, "rotation": 8 * 4 * (D + 1)}
    first, second, third = (commit.traffic for commit in ran.commits)
    clients, centroids = len(SIZES), 8 * L * D
    assert first.down == {"target": clients * size["target"]}
    assert first.up == {"records/centroids": clients * centroids, "metrics": clients * 8}
    # The target is what they have already; the schedule does not change either.
    news = {"online": size["online"], "rotation": size["rotation"], "centroids": 8 * G * D}
    assert second.down == {k: clients * v for k, v in (news | {"schedule": 8}).items()}
    assert third.down == {k: clients * v for k, v in (size | {"centroids": 8 * G * D}).items()}
    up = {k: v + 8 for k, v in size.items()} | {"records/centroids": centroids, "metrics": 32}
    assert second.up == third.up == {k: clients * v for k, v in up.items()}
