"""Orchestra: its loss's identities, the memory, rounds, stateless clients, balanced clusters."""

import copy
import logging
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.clustering.sinkhorn import local_centroids
from coterie.contract import ServerState
from coterie.engine.loop import Loop, RunState
from coterie.engine.serial import SerialBackend
from coterie.errors import ConfigError
from modules.orchestra import NETWORKS, Orchestra, scaled_epochs
from modules.orchestra_model import OrchestraModel, check_rotatable, rotated, scaled_rate
from tests.checkpoints import save
from tests.small_federation import (
    SHAPE,
    SIZES,
    Federated,
    Silent,
    federate,
    same_bits,
    slow_mean,
    tiny_task,
    tiny_workload,
)

SHORT = {
    "projection": 5, "hidden": 7, "batch_size": 8, "rounds": 2, "epochs": 2, "participation": 1.0,
    "local_clusters": 3, "global_clusters": 4, "global_steps": 20, "memory": 16,
    "learning_rate": 0.05, "momentum": 0.7,
}  # fmt: skip


def short(**changes: Any) -> Orchestra.Config:
    return Orchestra.Config(**SHORT | changes)


def model(**changes: Any) -> OrchestraModel:
    torch.manual_seed(0)
    built = OrchestraModel(short(**changes), tiny_task())
    built.on_train_epoch_start()
    return built


def batch_of(built: OrchestraModel, n: int = 8, seed: int = 5) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    samples = torch.randint(0, 256, (n, *SHAPE), dtype=torch.uint8, generator=draw)
    batch = {"samples": samples, "positions": torch.arange(n), "seed": seed}
    return built.on_after_batch_transfer(batch, 0)


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


def test_a_teacher_like_its_student_leaves_the_entropy_of_its_assignments() -> None:
    built = model()
    teacher, _, turned, turns, positions = batch_of(built)
    terms = built.training_step((teacher, teacher, turned, turns, positions), 0)
    z = torch.nn.functional.normalize(copy.deepcopy(built.target)(teacher), dim=1)
    p = (z @ built.centroids.T / 0.1).softmax(dim=1)
    entropy = -(p * p.log()).sum(dim=1).mean().item()
    assert terms["cluster"].item() == pytest.approx(entropy, rel=1e-12)
    assert 0.0 < entropy <= math.log(4)
    assert terms["loss"] == terms["cluster"] + terms["rotation"]


def test_equal_centroids_leave_log_g() -> None:
    built = model()
    built.centroids.copy_(built.centroids[:1].expand(4, -1))
    terms = built.training_step(batch_of(built), 0)
    assert terms["cluster"].item() == pytest.approx(math.log(4), rel=1e-12)


def test_a_rotation_head_of_zeros_leaves_log_4() -> None:
    built = model()
    torch.nn.init.zeros_(built.rotation.weight)
    torch.nn.init.zeros_(built.rotation.bias)
    terms = built.training_step(batch_of(built), 0)
    assert terms["rotation"].item() == pytest.approx(math.log(4), rel=1e-12)


def test_images_are_turned_by_multiples_of_90_degrees() -> None:
    images = torch.rand(4, 1, 3, 3)
    found = rotated(images, torch.tensor([0, 1, 2, 3]))
    for turn in range(4):
        assert torch.equal(found[turn], images[turn].rot90(turn, dims=(1, 2)))
    assert not torch.equal(found[1], images[1])


def test_views_are_drawn_from_the_batchs_seed_and_turns_are_of_all_four_kinds() -> None:
    built = model()
    one, two, other = batch_of(built, 64), batch_of(built, 64), batch_of(built, 64, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[3], other[3])
    assert set(one[3].tolist()) == {0, 1, 2, 3}
    assert not torch.equal(one[0], one[1])
    assert torch.equal(one[2], rotated(one[0], one[3]))


def test_a_plain_teacher_sees_the_sample_itself() -> None:
    plain, augmented = model(teacher_view="plain"), model()
    draw = torch.Generator().manual_seed(5)
    samples = torch.randint(0, 256, (8, *SHAPE), dtype=torch.uint8, generator=draw)
    teacher, student, turned, turns, _ = batch_of(plain)
    assert torch.equal(teacher, samples.double() / 255.0)
    assert torch.equal(turned, rotated(teacher, turns))
    assert torch.equal(student, batch_of(augmented)[1])


def test_no_gradient_reaches_target_or_centroids_and_the_optimiser_has_neither() -> None:
    built = model()
    centroids = built.centroids.clone()
    optimizer = built.configure_optimizers()
    built.training_step(batch_of(built), 0)["loss"].backward()
    assert all(p.grad is None for p in built.target.parameters())
    assert all(p.grad is not None for p in built.online.parameters())
    optimizer.step()
    assert torch.equal(built.centroids, centroids)
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    wanted = [*built.online.parameters(), *built.rotation.parameters()]
    assert trained == {id(p) for p in wanted}


def test_the_target_follows_by_the_closed_form_and_keeps_its_own_statistics() -> None:
    built = model()
    before = copy.deepcopy(built.target).state_dict()
    with torch.no_grad():
        for parameter in built.online.parameters():
            parameter.add_(1.0)
    for buffer in built.online.buffers():
        buffer.add_(1)
    built.on_train_batch_end(None, None, 0)
    built.on_train_batch_end(None, None, 1)
    names = {name for name, _ in built.target.named_parameters()}
    for name, value in built.target.state_dict().items():
        step = 1 - 0.7**2 if name in names else 0
        torch.testing.assert_close(value, before[name] + step, rtol=1e-12, atol=1e-12)


def rows(built: OrchestraModel) -> list[int]:
    return built.remembered.tolist()


def test_the_memory_holds_the_last_projections_newest_first() -> None:
    built = model(memory=6)
    views = batch_of(built)[0]
    assert built.recollect().shape == (0, 5)
    first = built.remember(views[:4], torch.arange(4))
    assert rows(built) == [3, 2, 1, 0, -1, -1]
    assert torch.equal(built.recollect(), first.flip(0))
    second = built.remember(views[4:], torch.arange(4, 8))
    assert rows(built) == [7, 6, 5, 4, 3, 2]
    assert torch.equal(built.recollect(), torch.cat([second.flip(0), first.flip(0)[:2]]))
    norms = built.memory.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-12)


def test_only_the_newest_projection_of_a_sample_counts() -> None:
    built = model(memory=6)
    views = batch_of(built)[0]
    built.remember(views[:3], torch.tensor([0, 1, 2]))
    newest = built.remember(views[3:6], torch.tensor([2, 0, 5]))
    assert rows(built) == [5, 0, 2, 2, 1, 0]
    expected = torch.cat([newest.flip(0), built.memory[4:5]])
    assert torch.equal(built.recollect(), expected)


def test_a_batch_larger_than_the_memory_leaves_its_last_rows() -> None:
    built = model(memory=6)
    z = built.remember(batch_of(built)[0], torch.arange(8))
    assert rows(built) == [7, 6, 5, 4, 3, 2]
    assert torch.equal(built.recollect(), z.flip(0)[:6])


def test_the_first_phase_only_clusters(ran: Federated) -> None:
    before, phase, means, records, after = ran.spy.served[0]
    assert (phase.name, phase.round, phase.step, phase.ends_round) == ("clustering", 1, 0, False)
    assert (phase.up, phase.down, means) == (frozenset(), {"target"}, {})
    for slot in NETWORKS:
        assert same_bits(before.slots[slot], after.slots[slot])
    assert sorted(records) == [0, 1, 2]
    assert not same_bits(before.slots["centroids"], after.slots["centroids"])


def test_the_first_phase_takes_its_samples_at_random_from_all(monkeypatch: Any) -> None:
    seen: dict[int, list[int]] = {}
    original = Orchestra._shared

    def shared(self: Any, client: Any, module: Any) -> Any:
        seen.setdefault(client.id, rows(module))
        return original(self, client, module)

    monkeypatch.setattr(Orchestra, "_shared", shared)
    federate(tiny_workload(short(memory=12)))
    drawn = {client: [p for p in positions if p >= 0] for client, positions in seen.items()}
    assert {client: len(positions) for client, positions in drawn.items()} == {0: 12, 1: 12, 2: 8}
    assert all(len(set(positions)) == len(positions) for positions in drawn.values())
    assert max(drawn[1]) >= 12


def test_rounds_follow_the_first_phase() -> None:
    method, state, seen = Orchestra(short(rounds=2), tiny_task()), ServerState(slots={}), []
    while (phase := method.next(state)) is not None:
        seen.append((phase.stage, phase.round, phase.step, phase.cohort))
        state = state.advance(phase, {})
    assert seen == [("clustering", 1, 0, 1.0), ("training", 1, 1, 1.0), ("training", 2, 0, 1.0)]


@pytest.mark.parametrize("weighting", ["samples", "clients"])
def test_the_server_averages_the_networks(weighting: str) -> None:
    ran = federate(tiny_workload(short(weighting=weighting, rounds=1)))
    turns = [turn for turn in ran.spy.turns if turn.phase.up]
    weights = [turn.outcome.up["online"].weight for turn in turns]
    assert weights == (list(SIZES) if weighting == "samples" else [1, 1, 1])
    for slot in NETWORKS:
        expected = slow_mean([turn.outcome.up[slot] for turn in turns])
        for name, value in expected.items():
            found = ran.state.server.slots[slot][name]
            torch.testing.assert_close(found, value, rtol=0, atol=1e-14)
        assert not same_bits(ran.start.slots[slot], ran.state.server.slots[slot])


def test_clients_keep_nothing_and_begin_with_an_empty_memory(ran: Federated) -> None:
    assert ran.state.states == {}
    assert all(turn.outcome.state is None for turn in ran.spy.turns)
    built = model()
    built.remember(batch_of(built)[0], torch.arange(8))
    pool = ran.backend._worker.pool
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

    monkeypatch.setattr("modules.orchestra.local_centroids", spied)
    ran = federate(tiny_workload(short(assignment=assignment)))
    assert len(sizes) == len(ran.spy.turns) == 9
    assert [sum(each) for each in sizes[:3]] == [13, 16, 8]
    assert all(max(each) - min(each) <= 1 for each in sizes) is equal
    told = [turn.outcome.metrics["smallest_cluster"] for turn in ran.spy.turns]
    assert told == [min(each) for each in sizes]
    if equal:
        assert told == [sum(each) // 3 for each in sizes]


def test_fewer_samples_than_clusters_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="modules.orchestra"):
        ran = federate(tiny_workload(short(local_clusters=14, rounds=1)))
    shapes = {t.client.id: len(t.outcome.records["centroids"]) for t in ran.spy.turns[:3]}
    assert shapes == {0: 13, 1: 14, 2: 8}
    assert caplog.messages[0] == (
        "Client 0 has 13 samples in memory, fewer than local_clusters=14: each is a cluster of "
        "its own."
    )


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


@pytest.mark.parametrize("shape", [(7,), (1, 8, 6)])
def test_what_cannot_be_rotated_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"cannot be rotated by 90°; choose data of square"):
        check_rotatable(shape)


def test_the_model_is_the_target_and_projects_among_the_global_clusters(ran: Federated) -> None:
    samples = torch.from_numpy(ran.backend._worker.samples["train"])
    found = ran.spy.model_for(ran.state.server, None).eval()
    assert found(samples).probabilities is None
    built = OrchestraModel(ran.spy._config, tiny_task()).eval()
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
