"""Orchestra's rounds: first phase, stateless clients, clusters, scaling, messages, resumption."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.clustering.sinkhorn import local_centroids
from coterie.contract import ServerState
from coterie.contract.accounting import epsilon
from coterie.errors import ConfigError
from coterie.execution.packing import unpack
from coterie.execution.serial import SerialBackend
from coterie.modules.averaging import scaled_rate
from coterie.modules.orchestra import NETWORKS, ROLES, Orchestra, scaled_epochs
from coterie.modules.orchestra_model import OrchestraModel
from coterie.networks.encoders import Encoder
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from coterie.run.recorder import joined_metrics
from tests.builders.checkpoints import save
from tests.builders.federation import (
    SIZES,
    Federated,
    TinyEncoder,
    federate,
    same_bits,
    slow_mean,
    tiny_task,
    tiny_workload,
)
from tests.builders.observers import Silent
from tests.builders.orchestra import batch_of, model, rows, short


@pytest.fixture(scope="module")
def ran() -> Federated:
    return federate(tiny_workload(short()))


def test_defaults_are_those_of_the_paper() -> None:
    config = Orchestra.Config()
    assert (config.rounds, config.epochs, config.batch_size, config.memory) == (100, 10, 16, 128)
    assert (config.learning_rate, config.sgd_momentum, config.weight_decay) == (0.003, 0.9, 1e-4)
    assert (config.momentum, config.participation, config.temperature) == (0.996, 0.5, 0.1)
    assert (config.local_clusters, config.global_clusters, config.global_steps) == (8, 32, 500)
    assert (config.projection, config.hidden, config.assignment) == (512, 512, "balanced")


def test_the_first_phase_only_clusters(ran: Federated) -> None:
    before, phase, means, gathered, after = ran.spy.served[0]
    assert (phase.name, phase.round, phase.step, phase.ends_round) == ("clustering", 1, 0, False)
    assert (phase.up, phase.down, means) == (frozenset(), {"target"}, {})
    for slot in NETWORKS:
        assert same_bits(before.slots[slot], after.slots[slot])
    assert sorted(gathered) == [0, 1, 2]
    assert not same_bits(before.slots["centroids"], after.slots["centroids"])


def test_the_first_phase_takes_its_samples_at_random_from_all(monkeypatch: Any) -> None:
    seen: dict[int, list[int]] = {}
    original = Orchestra.shared_records

    def shared(self: Any, client: Any, module: Any, slots: Any) -> Any:
        seen.setdefault(client.id, rows(module))
        return original(self, client, module, slots)

    monkeypatch.setattr(Orchestra, "shared_records", shared)
    federate(tiny_workload(short(memory=12)))
    drawn = {client: [p for p in positions if p >= 0] for client, positions in seen.items()}
    assert {client: len(positions) for client, positions in drawn.items()} == {0: 12, 1: 12, 2: 8}
    assert all(len(set(positions)) == len(positions) for positions in drawn.values())
    assert max(drawn[1]) >= 12


class WithDropout(TinyEncoder):
    """The tiny encoder with dropout in front: in train mode its outputs are random."""

    def build(self, shape: tuple[int, ...]) -> Encoder:
        tiny = super().build(shape)
        return Encoder(nn.Sequential(nn.Dropout(), tiny.network), tiny.features)


def test_a_random_encoder_draws_from_the_clients_seed_alone() -> None:
    workload = tiny_workload(short(rounds=1))
    workload = replace(workload, task=replace(workload.task, encoder=WithDropout()))
    slots, after = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        slots.append(federate(workload).spy.served[0][-1].slots["centroids"])
        after.append(torch.rand(1).item())
    assert same_bits(*slots)
    torch.manual_seed(2)
    assert after[1] == torch.rand(1).item()  # the caller's draws go on as if nothing had run


def test_rounds_follow_the_first_phase() -> None:
    method, state, seen = Orchestra(short(rounds=2), tiny_task()), ServerState(slots={}), []
    while (phase := method.next(state)) is not None:
        seen.append((phase.stage, phase.round, phase.step, phase.cohort))
        state = state.advance(phase, {})
    assert seen == [("clustering", 1, 0, 1.0), ("training", 1, 1, 1.0), ("training", 2, 0, 1.0)]


@pytest.mark.parametrize("weighting", ["samples", "clients"])
def test_the_server_averages_the_networks(weighting: str) -> None:
    ran = federate(tiny_workload(short(weighting=weighting, rounds=1)))
    tasks = [task for task in ran.spy.tasks if task.phase.up]
    weights = [task.outcome.up["online"].weight for task in tasks]
    assert weights == (list(SIZES) if weighting == "samples" else [1, 1, 1])
    for slot in NETWORKS:
        expected = slow_mean([task.outcome.up[slot] for task in tasks])
        for name, value in expected.items():
            found = ran.state.server.slots[slot][name]
            torch.testing.assert_close(found, value, rtol=0, atol=1e-14)
        assert not same_bits(ran.start.slots[slot], ran.state.server.slots[slot])


def test_clients_keep_nothing_and_begin_with_an_empty_memory(ran: Federated) -> None:
    assert ran.state.states == {}
    assert all(task.outcome.state is None for task in ran.spy.tasks)
    built = model()
    built.remember(batch_of(built)[0], torch.arange(8))
    pool = ran.backend.worker.pool
    pool.fresh("orchestra", lambda: built)  # built before, so this one is not asked for
    assert rows(pool.fresh("orchestra", lambda: built)) == [-1] * 16


def test_global_centroids_have_unit_length_after_each_phase(ran: Federated) -> None:
    for *_, after in ran.spy.served:
        norms = after.slots["centroids"]["centroids"].norm(dim=1)
        torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("assignment", "equal"), [("balanced", True), ("argmax", False)])
def test_balanced_clusters_of_every_client_have_equal_size_but_for_one(
    assignment: str, equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[list[int]] = []

    def spied(z: Tensor, clusters: int, **options: Any) -> tuple[Tensor, Tensor]:
        found, assigned = local_centroids(z, clusters, **options)
        sizes.append(assigned.bincount(minlength=clusters).tolist())
        return found, assigned

    monkeypatch.setattr("coterie.modules.orchestra.local_centroids", spied)
    ran = federate(tiny_workload(short(assignment=assignment)))
    assert len(sizes) == len(ran.spy.tasks) == 9
    assert [sum(each) for each in sizes[:3]] == [13, 16, 8]
    assert all(max(each) - min(each) <= 1 for each in sizes) is equal
    told = [task.outcome.metrics["smallest_cluster"] for task in ran.spy.tasks]
    assert told == [min(each) for each in sizes]
    if equal:
        assert told == [sum(each) // 3 for each in sizes]


@pytest.mark.parametrize(
    ("clusters", "sent", "warned"),
    [
        (4, {0: 4, 1: 4, 2: 4}, []),
        (5, {0: 5, 1: 5, 2: 5}, [2]),
        (14, {0: 13, 1: 14, 2: 8}, [0, 1, 2]),
    ],
)
def test_clusters_of_one_sample_are_warned_about(
    clusters: int, sent: dict[int, int], warned: list[int]
) -> None:
    ran = federate(tiny_workload(short(local_clusters=clusters, rounds=1)))
    tasks = ran.spy.tasks[:3]
    assert {t.client.id: len(t.outcome.gathered["centroids"]) for t in tasks} == sent
    alone = [t.client.id for t in tasks if t.outcome.metrics["smallest_cluster"] < 2]
    assert alone == warned
    told = {done.client: done.note for done in ran.commits[0].result.client_results if done.note}
    assert told == {
        client: f"it has {[13, 16, 8][client]} samples in memory, fewer than two for each of "
        f"local_clusters={clusters}: of a cluster with one sample, that sample's "
        "representation is sent"
        for client in warned
    }


@pytest.mark.parametrize("assignment", ["balanced", "argmax"])
def test_clusters_of_fewer_samples_than_the_minimum_are_not_sent(assignment: str) -> None:
    """With a k_anonymity of 9, the client of 8 samples sends none and the others one."""
    workload = tiny_workload(short(local_clusters=4, rounds=1, assignment=assignment))
    for k_anonymity, most in ((2, [4, 4, 4]), (4, [3, 4, 2]), (9, [1, 1, 0]), (99, [0, 0, 0])):
        task = replace(workload.task, k_anonymity=k_anonymity)
        ran = federate(replace(workload, task=task))
        for done, limit in zip(ran.commits[0].result.client_results, most, strict=True):
            sent = unpack(done.gathered)["centroids"]
            assert len(sent) == limit if assignment == "balanced" else len(sent) <= limit
            assert done.metrics.get("smallest_cluster", k_anonymity) >= k_anonymity
            assert bool(done.note) is (len(sent) < 4)
            if len(sent) < 4:
                assert (
                    f"sends {len(sent)} of 4 centroids, those of privacy.k_anonymity" in done.note
                )
        assert ran.state.failures == []


def test_representations_of_single_samples_need_a_minimum_of_one() -> None:
    with pytest.raises(
        ConfigError, match=r"^method\.privacy=none: .*set privacy\.k_anonymity=1 as we"
    ):
        Orchestra(short(privacy="none"), replace(tiny_task(), k_anonymity=2))


def test_the_runs_smallest_cluster_is_the_smallest_of_all_clients(ran: Federated) -> None:
    sizes = dict(enumerate(SIZES))
    for done in ran.commits:
        tasks = done.result.client_results
        own = [task.metrics["smallest_cluster"] for task in tasks]
        joined = joined_metrics(done.phase, tasks, sizes)
        assert joined["smallest_cluster"] == min(own) < max(own)
        if done.phase.up:
            losses = [n * task.metrics["loss"] for n, task in zip(SIZES, tasks, strict=True)]
            assert joined["loss"] == pytest.approx(sum(losses) / sum(SIZES), rel=1e-12)


def test_more_clients_take_more_epochs_and_participation_scales_the_rate() -> None:
    assert [scaled_epochs(10, clients, 100) for clients in (10, 100, 200, 400)] == [1, 10, 20, 40]
    assert scaled_epochs(10, 3, 100) == 1
    assert scaled_epochs(10, 400, None) == 10
    assert scaled_rate(0.003, 0.5, 0.5) == 0.003
    assert scaled_rate(0.003, 0.125, 0.5) == pytest.approx(0.0015)
    assert scaled_rate(0.003, 0.125, None) == 0.003
    optimizer = model(participation=1.0, base_participation=0.25).configure_optimizers()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_clients_train_for_the_scaled_number_of_epochs() -> None:
    ran = federate(tiny_workload(short(base_clients=2, epochs=2, rounds=1)))
    alone = federate(tiny_workload(short(epochs=3, rounds=1)))
    assert ran.state.server.slots["schedule"]["epochs"].tolist() == [3]
    for slot in NETWORKS:
        assert same_bits(ran.state.server.slots[slot], alone.state.server.slots[slot])


def test_the_model_is_the_target_and_projects_among_the_global_clusters(ran: Federated) -> None:
    samples = torch.from_numpy(ran.backend.worker.samples["train"])
    found = ran.spy.model_for(ran.state.server, None).eval()
    assert found(samples).probabilities is None
    built = OrchestraModel(ran.config, tiny_task()).eval()
    for tensors in ran.state.server.slots.values():
        built.load_state_dict(dict(tensors), strict=False)
    unit = samples.double() / 255.0
    assert torch.equal(found(samples).embedding, built.target.encoder(unit))
    z = torch.nn.functional.normalize(built.target(unit), dim=1)
    assert torch.equal(found.project(samples).embedding, z)
    p = (z @ built.centroids.T / 0.1).softmax(dim=1)
    assert torch.equal(found.project(samples).probabilities, p)


@pytest.mark.parametrize("phases", [1, 2])
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(
    ran: Federated, phases: int, tmp_path: Any
) -> None:
    workload = tiny_workload(short())
    method = Orchestra(short(), tiny_task())

    class Crash(BaseException):
        """The process is gone."""

    def commit(state: RunState, _: Any) -> None:
        if state.phases == phases:
            save(tmp_path, state, backend)
            raise Crash

    backend = SerialBackend(workload, lambda: None)
    with pytest.raises(Crash):
        Loop(method, backend, workload, Silent(), commit).run(RunState(server=ran.start))
    backend = SerialBackend(workload, lambda: None)
    state = load_checkpoint(tmp_path, backend).state
    assert state.phases == phases
    Loop(method, backend, workload, Silent(), lambda *_: None).run(state)
    for slot, tensors in ran.state.server.slots.items():
        assert same_bits(tensors, state.server.slots[slot])


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
NETWORKS_SENT = {
    "online": {f"online.{name}": shape for name, shape in BRANCH.items()},
    "target": {f"target.{name}": shape for name, shape in BRANCH.items()},
    "rotation": {"rotation.weight": (4, D), "rotation.bias": (4,)},
}


def ran_with(**changes: Any) -> Federated:
    config = Orchestra.Config(
        projection=D,
        hidden=H,
        batch_size=8,
        rounds=2,
        epochs=1,
        participation=1.0,
        local_clusters=L,
        global_clusters=G,
        global_steps=5,
        memory=M,
        **changes,
    )
    return federate(tiny_workload(config))


@pytest.fixture(scope="module")
def audited() -> Federated:
    return ran_with()


def shapes(slots: Any) -> dict[str, dict[str, tuple[int, ...]]]:
    return {
        slot: {name: tuple(value.shape) for name, value in tensors.items()}
        for slot, tensors in slots.items()
    }


def test_exactly_these_tensors_cross(audited: Federated) -> None:
    assert len(audited.spy.tasks) == 3 * len(SIZES)
    extra = {"centroids": {"centroids": (G, D)}, "schedule": {"epochs": (1,)}}
    for task in audited.spy.tasks:
        outcome, down = task.outcome, shapes(task.slots)
        up = shapes({slot: mean.tensors for slot, mean in outcome.up.items()})
        if task.phase.name == "clustering":
            assert (down, up) == ({"target": NETWORKS_SENT["target"]}, {})
            assert set(outcome.metrics) == {"smallest_cluster"}
        else:
            assert (down, up) == (NETWORKS_SENT | extra, NETWORKS_SENT)
            assert set(outcome.metrics) == {"loss", "cluster", "rotation", "smallest_cluster"}
        assert shapes({"sent": outcome.gathered}) == {"sent": {"centroids": (L, D)}}
        assert (outcome.state, outcome.peer_messages) == (None, {})


def test_representations_leave_only_in_the_idealised_variant(audited: Federated) -> None:
    ideal = ran_with(privacy="none")
    for task in ideal.spy.tasks:
        assert set(task.outcome.gathered) == {"representations"}
        assert task.outcome.metrics["smallest_cluster"] == 1.0
    rows = {t.client.id: len(t.outcome.gathered["representations"]) for t in ideal.spy.tasks[:3]}
    assert rows == {0: 13, 1: 16, 2: 8}
    # A centroid is the mean of four rows or more here, never one of them.
    for task, other in zip(audited.spy.tasks[:2], ideal.spy.tasks[:2], strict=True):
        sent, kept = task.outcome.gathered["centroids"], other.outcome.gathered["representations"]
        assert (sent @ kept.T).max() < 1 - 1e-6


def test_every_state_entry_has_a_rule_and_the_memory_belongs_to_no_slot() -> None:
    module = OrchestraModel(Orchestra.Config(), tiny_task())
    ROLES.check(module)
    assert {name for name in module.state_dict() if not ROLES.of(name).slot} == {
        "memory",
        "remembered",
        *(name for name in module.state_dict() if "num_batches" in name),
        *(name for name in module.state_dict() if name.startswith("augment.")),
    }


def test_bytes_are_those_counted_by_hand(audited: Federated) -> None:
    branch = 64 * 8 + 4 * 8 + 6 * 9 + H * 6 + 4 * H + D * H + 2 * D
    size = {"online": 8 * branch, "target": 8 * branch, "rotation": 8 * 4 * (D + 1)}
    first, second, third = (commit.traffic for commit in audited.commits)
    clients, centroids = len(SIZES), 8 * L * D
    assert first.down == {"target": clients * size["target"]}
    assert first.up == {"gathered/centroids": clients * centroids, "metrics": clients * 8}
    # The target is what they have already; the schedule does not change either.
    news = {"online": size["online"], "rotation": size["rotation"], "centroids": 8 * G * D}
    assert second.down == {k: clients * v for k, v in (news | {"schedule": 8}).items()}
    assert third.down == {k: clients * v for k, v in (size | {"centroids": 8 * G * D}).items()}
    up = {k: v + 8 for k, v in size.items()} | {"gathered/centroids": centroids, "metrics": 32}
    assert second.up == third.up == {k: clients * v for k, v in up.items()}


def private(**keys: Any) -> Any:
    return short(privacy="local_dp", epsilon=2.0, rounds=2, **keys)


def sent(ran: Federated) -> list[Tensor]:
    return [task.outcome.gathered["centroids"] for task in ran.spy.tasks]


def test_private_centroids_are_unit_rows_and_come_without_sizes() -> None:
    ran = federate(tiny_workload(private()))
    for task in ran.spy.tasks:
        assert not task.outcome.smallest
        assert "smallest_cluster" not in task.outcome.metrics
        rows = task.outcome.gathered["centroids"]
        assert 1 <= len(rows) <= ran.config.local_clusters
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows), dtype=rows.dtype))


def test_private_noise_is_from_the_secret_and_not_from_the_seed() -> None:
    first, again, other = (
        federate(tiny_workload(private()), secret) for secret in (b"one", b"one", b"two")
    )
    assert all(map(torch.equal, sent(first), sent(again)))
    assert not any(
        one.shape == two.shape and torch.equal(one, two)
        for one, two in zip(sent(first), sent(other), strict=True)
    )
    with pytest.raises(ValueError, match="compose with a NoiseLedger"):
        federate(tiny_workload(private()), b"")


def test_private_phases_add_up() -> None:
    ran = federate(tiny_workload(private()))
    spent = [done.metrics["epsilon"] for done in ran.commits]
    noise = float(ran.start.slots["schedule"]["noise"])
    assert spent == [epsilon(phases, noise, 1e-3) for phases in (1, 2, 3)]
    assert spent[0] == pytest.approx(2.0, rel=1e-6)
    public = federate(tiny_workload(short(rounds=1)))
    assert [dict(done.metrics) for done in public.commits] == [{}, {}]


def test_an_epsilon_and_local_dp_come_together() -> None:
    with pytest.raises(ConfigError, match=r"^privacy=.*: give an epsilon with privacy=local_dp"):
        Orchestra.Config(privacy="local_dp")
    with pytest.raises(ConfigError, match=r"^privacy=.*: give an epsilon with privacy=local_dp"):
        Orchestra.Config(epsilon=1.0)
    with pytest.raises(ConfigError, match=r"method\.epsilon=1e-07: .* give a larger one"):
        federate(tiny_workload(short(privacy="local_dp", epsilon=1e-7, delta=1e-9)))
