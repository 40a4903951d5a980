"""CCFC and SCFC: identities, schedule, centroids, ablations, messages, resumption."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.clustering.kmeans import counted_means, kmeans, nearest_centroids
from coterie.contract import Phase
from coterie.contract.roles import Role
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError, ContractError, RunError
from coterie.execution.packing import unpack
from coterie.execution.serial import SerialBackend
from coterie.modules.ccfc import CCFC, ROLES, SCFC
from coterie.modules.cluster_siamese import ClusterSiamese, SiameseNetwork
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from tests.builders.checkpoints import save
from tests.builders.federation import (
    SIZES,
    Federated,
    SpiedTask,
    federate,
    same_bits,
    slow_mean,
    tiny_task,
    tiny_workload,
)
from tests.builders.loops import plain
from tests.builders.observers import Silent

SHORT = {"projection": 5, "hidden": 7, "bottleneck": 4, "batch_size": 8, "restarts": 2}
CLUSTERS = 3
WEIGHT = "online.encoder.projector.0.layers.0.weight"


def short(**changes: object) -> CCFC.Config:
    return CCFC.Config(**SHORT | {"warmup_rounds": 1, "rounds": 2} | changes)


def tasks_of(ran: Federated, phase: Phase) -> list[SpiedTask]:
    at = (phase.round, phase.step)
    return [task for task in ran.spy.tasks if (task.phase.round, task.phase.step) == at]


@pytest.fixture(scope="module")
def ran() -> Federated:
    return federate(tiny_workload(short(keep_optimizer=True)))


def phases_of(method: CCFC | SCFC) -> list[tuple[object, ...]]:
    """Every phase, the server half being fed centroids as clients would give them."""
    state, phases = method.init(dict(enumerate(SIZES)), 0), []
    while (phase := method.next(state)) is not None:
        assert phase == method.next(state)
        gathered = {0: {"centroids": torch.randn(CLUSTERS, 5)}} if phase.gathered else {}
        state = method.server(state, phase, {}, gathered)
        phases.append((phase.name, phase.round, phase.step, sorted(phase.down), phase.cohort))
    assert state.round == method.rounds
    return phases


NETWORKS = ["encoder", "predictor"]


def test_schedule_with_a_warm_up() -> None:
    assert phases_of(CCFC(short(participation=0.5), tiny_task())) == [
        ("samples", 1, 0, NETWORKS, 0.5),
        ("centroids", 2, 0, ["encoder"], 0.5),
        ("clusters", 2, 1, ["centroids", *NETWORKS], 0.5),
        ("clusters", 3, 0, ["centroids", *NETWORKS], 0.5),
    ]


def test_without_one_the_initial_network_gives_the_first_centroids() -> None:
    assert phases_of(CCFC(short(warmup_rounds=0, rounds=1), tiny_task())) == [
        ("centroids", 1, 0, ["encoder"], 1.0),
        ("clusters", 1, 1, ["centroids", *NETWORKS], 1.0),
    ]


def test_scfc_mines_centroids_in_every_round() -> None:
    method = SCFC(SCFC.Config(**SHORT, rounds=2, alone=1), tiny_task())
    assert phases_of(method) == [
        ("samples", 1, 0, NETWORKS, (1,)),
        ("samples", 2, 0, NETWORKS, (1,)),
    ]
    assert method.next(method.init(dict(enumerate(SIZES)), 0)).gathered == {"centroids"}


def test_a_round_in_which_nobody_finds_centroids_ends_and_the_next_one_tries_again() -> None:
    method = CCFC(short(warmup_rounds=0, rounds=2), tiny_task())
    state, tried = method.init(dict(enumerate(SIZES)), 0), []
    while (phase := method.next(state)) is not None:
        tried.append((phase.name, phase.round, phase.step, phase.ends_round))
        state = state.advance(phase, {})
    assert tried == [
        ("centroids", 1, 0, False),
        ("centroids", 1, 1, True),
        ("centroids", 2, 0, False),
        ("centroids", 2, 1, True),
    ]


def test_defaults_are_those_of_the_paper_and_of_its_code() -> None:
    ccfc, scfc = CCFC.Config(), SCFC.Config()
    assert (ccfc.pairs, ccfc.warmup_rounds, ccfc.rounds) == ("exclude_self", 0, 30)
    assert scfc.rounds == 100
    for config in (ccfc, scfc):
        assert (config.metric, config.model_weight, config.alone) == ("euclidean", 0.001, None)
        assert (config.projection, config.hidden, config.bottleneck) == (256, 256, 16)
        assert (config.learning_rate, config.batch_size, config.epochs) == (1e-3, 128, 1)
        assert config.keep_optimizer is False


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_result_is_the_nearest_global_centroid_of_the_global_network(metric: str) -> None:
    ran = federate(tiny_workload(short(metric=metric)))
    model = ran.spy.model_for(ran.state.server, None).eval()
    found = model(torch.from_numpy(ran.backend.worker.samples["train"]))
    centroids = ran.state.server.slots["centroids"]["centroids"]
    nearest = nearest_centroids(found.embedding, centroids, metric)
    assert torch.equal(found.probabilities.argmax(dim=1), nearest)
    assert len(nearest.unique()) > 1
    # By cosine a representation's length tells nothing, of the confidence neither.
    longer = model.head(3 * found.embedding)
    assert torch.allclose(longer, found.probabilities) == (metric == "cosine")
    # Before there are centroids, who scores it by k-means is to do it in the same space.
    early = ran.spy.model_for(ran.start, None).eval()
    assert early.head is None
    lengths = early(torch.from_numpy(ran.backend.worker.samples["train"])).embedding.norm(dim=1)
    assert torch.allclose(lengths, torch.ones_like(lengths)) == (metric == "cosine")


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_centroids_are_mined_in_the_local_latents_and_clustered_again(metric: str) -> None:
    ran = federate(tiny_workload(short(metric=metric)))
    for before, phase, means, gathered, after in ran.spy.served:
        if not phase.gathered:
            assert "centroids" not in after.slots
            continue
        tasks = tasks_of(ran, phase)
        for task in tasks:
            network = SiameseNetwork(short(), tiny_task()).double()
            slots = {k: m.tensors for k, m in task.outcome.up.items()} or task.slots
            given = {n.removeprefix("online."): v for s in slots.values() for n, v in s.items()}
            network.load_state_dict(given, strict=False)
            latent = task.client.embed(network.encoder)
            if metric == "cosine":
                latent = torch.nn.functional.normalize(latent)
            draw = derive_seed(task.client.seed, "kmeans")
            expected, _ = counted_means(latent, kmeans(latent, CLUSTERS, seed=draw, restarts=2))
            assert torch.equal(task.outcome.gathered["centroids"], expected)
        stacked = torch.cat([gathered[c]["centroids"] for c in sorted(gathered)])
        draw = derive_seed(before.metadata["seed"], "kmeans", phase.round, phase.step)
        again = kmeans(stacked, CLUSTERS, seed=draw, restarts=2).centroids
        assert torch.equal(after.slots["centroids"]["centroids"], again)
        assert set(means) == phase.up


def test_the_first_centroids_leave_the_network_to_the_bit(ran: Federated) -> None:
    before, phase, _, _, after = ran.spy.served[1]
    assert phase.name == "centroids"
    for slot in NETWORKS:
        assert same_bits(before.slots[slot], after.slots[slot])
        assert same_bits(before.slots[slot], ran.spy.served[2][0].slots[slot])


def test_the_server_averages_by_the_numbers_of_samples(ran: Federated) -> None:
    for _, phase, _, _, after in ran.spy.served:
        tasks = tasks_of(ran, phase)
        for slot in phase.up:
            assert [task.outcome.up[slot].weight for task in tasks] == list(SIZES)
            for name, value in slow_mean([task.outcome.up[slot] for task in tasks]).items():
                torch.testing.assert_close(after.slots[slot][name], value, rtol=0, atol=1e-14)


def test_adam_is_kept_from_round_to_round_of_a_stage_and_reset_between(ran: Federated) -> None:
    def count(kept: dict[str, Tensor]) -> set[int]:
        return {int(value) for name, value in kept.items() if name.endswith("/step")}

    for client, batches in enumerate((2, 3, 1)):
        tasks = [task for task in ran.spy.tasks if task.client.id == client]
        assert [task.phase.name for task in tasks] == [
            "samples",
            "centroids",
            "clusters",
            "clusters",
        ]
        steps = [count(task.outcome.state) for task in tasks]
        assert steps == [{batches}, {batches}, {batches}, {2 * batches}]
        stages = [{name.split("/")[0] for name in task.outcome.state} for task in tasks]
        assert stages == [{"samples"}, {"samples"}, {"clusters"}, {"clusters"}]


def test_nothing_is_kept_by_default() -> None:
    ran = federate(tiny_workload(short()))
    assert ran.state.states == {}


def test_alone_a_client_gets_its_own_network_and_its_own_centroids() -> None:
    ran = federate(tiny_workload(short(alone=1)))
    assert {task.client.id for task in ran.spy.tasks} == {1}
    last, slots = ran.spy.tasks[-1].outcome, ran.state.server.slots
    for slot in NETWORKS:
        for name, value in last.up[slot].tensors.items():  # sums are exact to 2^-60
            torch.testing.assert_close(slots[slot][name], value, rtol=0, atol=2.0**-59)
    assert torch.equal(slots["centroids"]["centroids"], last.gathered["centroids"])


def test_a_client_goes_on_alone_from_the_model_of_all() -> None:
    """CCFC, figure 1 (d)."""
    config = SCFC.Config(**SHORT, rounds=3, alone=1, alone_from=3)
    ran = federate(tiny_workload(config))
    there = [{t.client.id for t in ran.spy.tasks if t.phase.round == n} for n in (1, 2, 3)]
    assert there == [{0, 1, 2}, {0, 1, 2}, {1}]
    both = federate(tiny_workload(SCFC.Config(**SHORT, rounds=2, model_weight=0.0)))
    last = ran.spy.tasks[-1]
    for slot in TRAINED:
        assert same_bits(last.slots[slot], both.state.server.slots[slot])
        for name, value in last.outcome.up[slot].tensors.items():
            found = ran.state.server.slots[slot][name]
            torch.testing.assert_close(found, value, rtol=0, atol=2.0**-59)


def test_failed_devices_take_no_part_in_any_phase() -> None:
    ran = federate(tiny_workload(short(), participation={"device_failure_rate": 0.34}))
    there = [
        {t.client.id for t in ran.spy.tasks if (t.phase.round, t.phase.step) == at}
        for at in ((1, 0), (2, 0), (2, 1), (3, 0))
    ]
    assert len(there[0]) == 2
    assert there == [there[0]] * 4


def test_clients_may_begin_from_weights_of_their_own_which_are_averaged() -> None:
    """A learning rate of almost nothing shows what each round of the warm-up began from."""
    still = {"warmup_rounds": 2, "learning_rate": 1e-12}
    ran = federate(tiny_workload(short(initial="independent", **still)))
    every = len(SIZES)
    tasks = ran.spy.tasks[: 2 * every]
    begun = [task.outcome.up["encoder"].tensors[WEIGHT] for task in tasks]
    given = [task.slots["encoder"][WEIGHT] for task in tasks]
    for client in range(every):
        others = [ran.start.slots["encoder"][WEIGHT], *begun[:client]]
        assert torch.equal(given[client], others[0])
        assert all((begun[client] - other).abs().max() > 0.01 for other in others)
        torch.testing.assert_close(begun[every + client], given[every + client])
    mean = sum(n / sum(SIZES) * w for n, w in zip(SIZES, begun, strict=False))
    torch.testing.assert_close(given[every], mean)
    common = federate(tiny_workload(short(**still)))
    for task in common.spy.tasks[:every]:
        torch.testing.assert_close(
            task.outcome.up["encoder"].tensors[WEIGHT], task.slots["encoder"][WEIGHT]
        )


def test_weights_of_their_own_need_a_warm_up() -> None:
    with pytest.raises(ConfigError, match=r"initial=independent: .* method\.warmup_rounds=0"):
        CCFC(short(initial="independent", warmup_rounds=0), tiny_task())


def test_impossible_values_are_refused_before_anything_runs() -> None:
    method = CCFC(short(clusters=10), tiny_task())
    with pytest.raises(ConfigError, match="clusters=10: client 2 has 9 samples, and each client"):
        method.init(dict(enumerate(SIZES)), 0)
    method = CCFC(short(alone=3), tiny_task())
    with pytest.raises(ConfigError, match=r"alone=3: there are 3 clients; choose 0 to 2\."):
        method.init(dict(enumerate(SIZES)), 0)


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
TRAINED = {"encoder", "predictor"}


def test_only_networks_and_centroids_cross(ran: Federated) -> None:
    assert len(ran.spy.tasks) == 4 * CLIENTS
    expected = {
        ("samples", 1): (TRAINED, TRAINED, set()),
        ("centroids", 2): ({"encoder"}, set(), {"centroids"}),
        ("clusters", 2): (TRAINED | {"centroids"}, TRAINED, {"centroids"}),
        ("clusters", 3): (TRAINED | {"centroids"}, TRAINED, {"centroids"}),
    }
    for task in ran.spy.tasks:
        down, up, gathered = expected[task.phase.name, task.phase.round]
        assert set(task.slots) == down
        assert set(task.outcome.up) == up
        assert set(task.outcome.gathered) == gathered
        assert task.outcome.peer_messages == {}
        metrics = {"loss", "contrast", "model"} if up else set()
        assert set(task.outcome.metrics) == metrics
        for slots in (task.slots, {k: mean.tensors for k, mean in task.outcome.up.items()}):
            for slot in TRAINED & set(slots):
                assert all(name.startswith(f"online.{slot}.") for name in slots[slot])
                assert not [name for name in slots[slot] if "num_batches" in name]
                assert sum(value.numel() for value in slots[slot].values()) == NUMBERS[slot]


def test_centroids_are_k_vectors_of_the_latent_space(ran: Federated) -> None:
    sent = [t.outcome.gathered["centroids"] for t in ran.spy.tasks if t.outcome.gathered]
    offered = [t.slots["centroids"]["centroids"] for t in ran.spy.tasks if "centroids" in t.slots]
    for centroids in (*sent, *offered):
        assert (tuple(centroids.shape), centroids.dtype) == ((3, 5), torch.float32)
    assert (len(sent), len(offered)) == (3 * CLIENTS, 2 * CLIENTS)


def test_scfc_sends_the_same_and_is_offered_networks_alone() -> None:
    ran = federate(tiny_workload(SCFC.Config(**SHORT, rounds=2)))
    for task in ran.spy.tasks:
        assert set(task.slots) == set(task.outcome.up) == TRAINED
        assert {k: tuple(v.shape) for k, v in task.outcome.gathered.items()} == {
            "centroids": (3, 5)
        }
        assert task.outcome.state is None


def test_a_client_keeps_adam_alone(ran: Federated) -> None:
    parameters = {
        name
        for name, _ in ClusterSiamese(CONFIG, tiny_task(), "clusters").online.named_parameters()
    }
    wanted = {f"{name}/{key}" for name in parameters for key in ("step", "exp_avg", "exp_avg_sq")}
    assert set(ran.kept) == {0, 1, 2}
    assert all(set(kept) == {f"clusters/{name}" for name in wanted} for kept in ran.kept.values())


def test_every_state_entry_has_a_role() -> None:
    module = ClusterSiamese(CONFIG, tiny_task(), "clusters")
    ROLES.check(module)
    averaged = {name for name in module.state_dict() if ROLES.of(name).role is Role.AVERAGE}
    assert averaged == {
        name for name in module.state_dict() if name.startswith("online.") and "num_" not in name
    }
    assert not [name for name in module.state_dict() if ROLES.of(name).role is Role.KEEP]
    with pytest.raises(ContractError, match="has no role"):
        ROLES.of("online.backbone.weight")


def test_bytes_of_each_phase_are_those_counted_by_hand(ran: Federated) -> None:
    size = {part: SCALAR * count * CLIENTS for part, count in NUMBERS.items()}
    trained = {part: size[part] + SCALAR * CLIENTS for part in TRAINED}
    trained["metrics"] = 3 * SCALAR * CLIENTS
    centroids = CENTROIDS * CLIENTS
    mined = {"gathered/centroids": centroids}
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
    assert all(task.client.data.labels is None for task in ran.spy.tasks)


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

    loop = Loop(backend.worker.method, backend, workload, Silent(), commit)
    with pytest.raises(Crash):
        loop.run(RunState(server=ran.start))
    again = SerialBackend(workload, lambda: None)
    state = load_checkpoint(tmp_path, again).state
    Loop(again.worker.method, again, workload, Silent(), lambda *_: None).run(state)
    assert plain(state) == plain(ran.state)


def test_a_client_of_many_samples_does_not_send_the_centroid_of_one() -> None:
    workload = tiny_workload(short(clusters=6, warmup_rounds=0, rounds=1))
    ran = federate(replace(workload, task=replace(workload.task, k_anonymity=2)))
    done = ran.commits[0].result.client_results
    assert [one.smallest["gathered/centroids"] >= 2 for one in done] == [True] * 3
    assert done[0].note.startswith("it sends 5 of 6 centroids")
    assert len(workload.parts[done[0].client]) >= 2 * 6


def test_centroids_of_fewer_samples_than_the_minimum_are_not_sent() -> None:
    workload = tiny_workload(short(clusters=3, warmup_rounds=0, rounds=1))
    whole_sets = federate(workload).spy.tasks[:3]
    ran = federate(replace(workload, task=replace(workload.task, k_anonymity=5)))
    sent = 0
    for spied, done in zip(whole_sets, ran.commits[0].result.client_results, strict=True):
        centroids = unpack(done.gathered)["centroids"]
        whole = spied.outcome.gathered["centroids"]
        assert done.smallest["gathered/centroids"] >= 5 or len(centroids) == 0
        assert all((whole == row).all(dim=1).any() for row in centroids)
        assert (done.note != "") is (len(centroids) < 3)
        if done.note:
            assert done.note.startswith(f"it sends {len(centroids)} of 3 centroids; the others")
        sent += len(centroids)
    assert 3 <= sent < 9
    assert ran.state.failures == []
    with pytest.raises(RunError, match=r"^method\.clusters=3: clients sent only 0 centroids of"):
        federate(replace(workload, task=replace(workload.task, k_anonymity=99)))
