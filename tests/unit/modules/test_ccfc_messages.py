"""What crosses the network in CCFC, key by key and byte by byte; a run that is resumed."""

from typing import Any

import pytest
import torch

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.contract.rules import Rule
from coterie.errors import ContractError
from coterie.execution.serial import SerialBackend
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from modules.ccfc import CCFC, RULES, SCFC
from modules.cluster_siamese import ClusterSiamese
from tests.checkpoints import save
from tests.methods_for_tests.running import plain
from tests.small_federation import (
    SIZES,
    Federated,
    Silent,
    federate,
    tiny_task,
    tiny_workload,
)

SHORT = {"projection": 5, "hidden": 7, "bottleneck": 4, "batch_size": 8, "restarts": 2}
CONFIG = CCFC.Config(**SHORT, warmup_rounds=1, rounds=2, keep_optimizer=True)
CLIENTS, SCALAR, CENTROIDS = len(SIZES), 8, 3 * 5 * 4
"""Clients; bytes of a float64, a weight or a metric; bytes of three float32 centroids."""
NUMBERS = {
    # Linear 64→8 without bias, BatchNorm, Linear 8→6; projector 6→7→5 with two BatchNorms, the
    # last of which has running statistics alone.
    "encoder": 64 * 8 + 4 * 8 + (8 * 6 + 6) + 6 * 7 + 4 * 7 + (7 * 5 + 5) + 2 * 5,
    # 5→4→5 with a BatchNorm between.
    "predictor": 5 * 4 + 4 * 4 + (4 * 5 + 5),
}
NETWORKS = {"encoder", "predictor"}


@pytest.fixture(scope="module")
def ran() -> Federated:
    return federate(tiny_workload(CONFIG))


def test_only_networks_and_centroids_cross(ran: Federated) -> None:
    assert len(ran.spy.turns) == 4 * CLIENTS
    expected = {
        ("samples", 1): (NETWORKS, NETWORKS, set()),
        ("centroids", 2): ({"encoder"}, set(), {"centroids"}),
        ("clusters", 2): (NETWORKS | {"centroids"}, NETWORKS, {"centroids"}),
        ("clusters", 3): (NETWORKS | {"centroids"}, NETWORKS, {"centroids"}),
    }
    for turn in ran.spy.turns:
        down, up, records = expected[turn.phase.name, turn.phase.round]
        assert set(turn.slots) == down
        assert set(turn.outcome.up) == up
        assert set(turn.outcome.records) == records
        assert turn.outcome.mail == {}
        metrics = {"loss", "contrast", "model"} if up else set()
        assert set(turn.outcome.metrics) == metrics
        for slots in (turn.slots, {k: mean.tensors for k, mean in turn.outcome.up.items()}):
            for slot in NETWORKS & set(slots):
                assert all(name.startswith(f"online.{slot}.") for name in slots[slot])
                assert not [name for name in slots[slot] if "num_batches" in name]
                assert sum(value.numel() for value in slots[slot].values()) == NUMBERS[slot]


def test_centroids_are_k_vectors_of_the_latent_space(ran: Federated) -> None:
    sent = [t.outcome.records["centroids"] for t in ran.spy.turns if t.outcome.records]
    offered = [t.slots["centroids"]["centroids"] for t in ran.spy.turns if "centroids" in t.slots]
    for centroids in (*sent, *offered):
        assert (tuple(centroids.shape), centroids.dtype) == ((3, 5), torch.float32)
    assert (len(sent), len(offered)) == (3 * CLIENTS, 2 * CLIENTS)


def test_scfc_sends_the_same_and_is_offered_networks_alone() -> None:
    ran = federate(tiny_workload(SCFC.Config(**SHORT, rounds=2)))
    for turn in ran.spy.turns:
        assert set(turn.slots) == set(turn.outcome.up) == NETWORKS
        assert {k: tuple(v.shape) for k, v in turn.outcome.records.items()} == {"centroids": (3, 5)}
        assert turn.outcome.state is None


def test_a_client_keeps_adam_alone(ran: Federated) -> None:
    parameters = {
        name
        for name, _ in ClusterSiamese(CONFIG, tiny_task(), "clusters").online.named_parameters()
    }
    wanted = {f"{name}/{key}" for name in parameters for key in ("step", "exp_avg", "exp_avg_sq")}
    assert set(ran.kept) == {0, 1, 2}
    assert all(set(kept) == {f"clusters/{name}" for name in wanted} for kept in ran.kept.values())


def test_every_state_entry_has_a_rule() -> None:
    module = ClusterSiamese(CONFIG, tiny_task(), "clusters")
    RULES.check(module)
    averaged = {name for name in module.state_dict() if RULES.of(name).rule is Rule.AVERAGE}
    assert averaged == {
        name for name in module.state_dict() if name.startswith("online.") and "num_" not in name
    }
    assert not [name for name in module.state_dict() if RULES.of(name).rule is Rule.KEEP]
    with pytest.raises(ContractError, match="has no rule"):
        RULES.of("online.backbone.weight")


def test_bytes_of_each_phase_are_those_counted_by_hand(ran: Federated) -> None:
    size = {part: SCALAR * count * CLIENTS for part, count in NUMBERS.items()}
    trained = {part: size[part] + SCALAR * CLIENTS for part in NETWORKS}
    trained["metrics"] = 3 * SCALAR * CLIENTS
    centroids = CENTROIDS * CLIENTS
    mined = {"records/centroids": centroids}
    first, found, second, third = (commit.traffic for commit in ran.commits)
    assert (first.down, first.up) == (size, trained)
    assert (found.down, found.up) == ({"encoder": size["encoder"]}, mined)
    # The encoder came with the phase before.
    assert second.down == {"predictor": size["predictor"], "centroids": centroids}
    assert second.up == third.up == trained | mined
    assert third.down == size | {"centroids": centroids}
    assert all(commit.traffic.peer == {} for commit in ran.commits)


def test_training_sees_no_label(ran: Federated, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Any] = []
    original = ClusterSiamese.on_after_batch_transfer

    def watch(self: Any, batch: Any, index: int) -> Any:
        batches.append(set(batch))
        return original(self, batch, index)

    monkeypatch.setattr(ClusterSiamese, "on_after_batch_transfer", watch)
    federate(tiny_workload(CONFIG))
    assert len(batches) == 3 * (2 + 3 + 1)
    assert all(keys == {"samples", "positions", "seed"} for keys in batches)
    assert all(turn.client.data.labels is None for turn in ran.spy.turns)


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("phases", [1, 2, 3])
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(
    tmp_path: Any, phases: int, ran: Federated
) -> None:
    workload = tiny_workload(CONFIG)
    backend = SerialBackend(workload, lambda: None)

    def commit(state: RunState, _: Any) -> None:
        if state.phases == phases:
            save(tmp_path, state, backend)
            raise Crash

    loop = Loop(backend._worker.method, backend, workload, Silent(), commit)
    with pytest.raises(Crash):
        loop.run(RunState(server=ran.start))
    again = SerialBackend(workload, lambda: None)
    state = load_checkpoint(tmp_path, again).state
    Loop(again._worker.method, again, workload, Silent(), lambda *_: None).run(state)
    assert plain(state) == plain(ran.state)
