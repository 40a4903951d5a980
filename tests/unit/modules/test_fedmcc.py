"""FedMCC's rounds: schedule, targets, averaging, cluster projectors, and what is sent."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.commands.compose import compose
from coterie.contract import Plan, ServerState, Tensors
from coterie.contract.client import ClientData
from coterie.contract.phase import WeightedUpdate
from coterie.contract.roles import Role
from coterie.contract.seeds import derive_seed, seeded
from coterie.errors import ConfigError, ContractError
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.batches import SeededBatches
from coterie.execution.serial import SerialBackend
from coterie.modules.fedmcc import MCC, FedMCC, head_losses
from coterie.modules.mcc import PARTS, MomentumContrast
from coterie.run.setup import assemble
from tests.builders.federation import (
    SHAPE,
    SIZES,
    Federated,
    federate,
    same_bits,
    slow_mean,
    tiny_task,
    tiny_workload,
)

SHORT = {
    "projection": 5,
    "batch_size": 8,
    "momentum": 0.7,
    "learning_rate": 0.01,
    "representation_rounds": 3,
    "clustering_rounds": 2,
    "representation_epochs": 1,
    "clustering_epochs": 2,
}


def short(**changes: object) -> FedMCC.Config:
    return FedMCC.Config(**SHORT | changes)


@pytest.fixture(scope="module")
def ran() -> Federated:
    """Three and two rounds of two of the three clients: somebody comes late."""
    return federate(tiny_workload(short(participation=0.5)))


def rounds_of(method: FedMCC | MCC) -> list[tuple[str, int]]:
    state, rounds = ServerState(slots={}), []
    while (phase := method.next(state)) is not None:
        assert phase == method.next(state)
        rounds.append((phase.stage, phase.round))
        state = state.advance(phase, {})
    assert len(rounds) == method.rounds
    return rounds


@pytest.mark.parametrize("clustering", [0, 1, 4])
def test_stage_one_comes_before_stage_two_and_then_nothing(clustering: int) -> None:
    method = FedMCC(short(clustering_rounds=clustering), tiny_task())
    expected = [("representation", r) for r in (1, 2, 3)]
    assert rounds_of(method) == expected + [("clustering", 4 + r) for r in range(clustering)]


def test_stage_two_alone_clusters_the_encoder_as_it_is_given() -> None:
    ran = federate(tiny_workload(short(representation_rounds=0)))
    assert [task.phase.stage for task in ran.spy.tasks[::3]] == ["clustering", "clustering"]
    assert same_bits(ran.start.slots["encoder"], ran.state.server.slots["encoder"])
    assert not same_bits(ran.start.slots["cluster"], ran.state.server.slots["cluster"])
    assert ran.spy.model_for(ran.state.server, None).head is not None
    with pytest.raises(ConfigError, match=r"method\.representation_rounds=0: with"):
        FedMCC(short(representation_rounds=0, clustering_rounds=0), tiny_task())


def test_mcc_has_one_stage() -> None:
    method = MCC(MCC.Config(rounds=2, epochs=1), tiny_task())
    assert rounds_of(method) == [("joint", 1), ("joint", 2)]


def test_defaults_are_those_of_the_paper() -> None:
    config, central = FedMCC.Config(), MCC.Config()
    assert (config.representation_rounds, config.clustering_rounds) == (100, 10)
    assert (config.representation_epochs, config.clustering_epochs) == (5, 5)
    assert central.rounds * central.epochs == 500
    for each in (config, central):
        assert (each.batch_size, each.momentum, each.projection) == (128, 0.99, 128)
        assert (each.instance_temperature, each.cluster_temperature) == (0.5, 1.0)
        assert (each.learning_rate, each.weight_decay) == (3e-4, 0.0)
        assert (each.include_positive, each.representations) == (False, "four")


def replay(ran: Federated, number: int, kept: dict[int, Tensors]) -> None:
    """Train the recorded task again by hand, and compare it with what the engine made of it."""
    task = ran.spy.tasks[number]
    stage, client = task.phase.stage, task.client
    with seeded(derive_seed(5, "init")):
        module = MomentumContrast(ran.config, tiny_task(), stage)
    state = module.state_dict()
    for tensors in task.slots.values():
        for name, value in tensors.items():
            state[name].copy_(value)
    module.target.load_state_dict(module.online.state_dict())
    for name, value in kept.get(client.id, {}).items():
        if name.split(".")[1] in PARTS[stage]:
            module.state_dict()[name].copy_(value)
    data = ClientData(samples=client.data.samples, rows=client.data.rows)
    plan = Plan(batch_size=8, epochs={"representation": 1, "clustering": 2}[stage])
    BareTrainer(precision="64-true").fit(
        module, SeededBatches(data, plan, client.seed), client.seed
    )
    for slot, mean in task.outcome.up.items():
        for name, value in mean.tensors.items():
            assert torch.equal(module.state_dict()[name], value), (number, slot, name)
    kept[client.id] = {
        name: value.clone()
        for name, value in module.state_dict().items()
        if name.startswith("target.")
        and name.split(".")[1] in PARTS[stage]
        and "num_batches" not in name
    }
    assert same_bits(kept[client.id], task.outcome.state)


def test_targets_start_from_the_global_model_and_are_kept_after_that(ran: Federated) -> None:
    kept: dict[int, Tensors] = {}
    for number in range(len(ran.spy.tasks)):
        replay(ran, number, kept)
    assert len(ran.spy.tasks) == 10
    first = {}
    for task in ran.spy.tasks:
        first.setdefault(task.client.id, (task.phase.round, task.client.state))
    assert {state for _, state in first.values()} == {None}
    assert max(number for number, _ in first.values()) > 1, "nobody came late: choose another seed"


def test_a_forgotten_target_would_be_noticed(ran: Federated) -> None:
    seen: set[int] = set()
    for number, task in enumerate(ran.spy.tasks):
        if task.client.id in seen:
            with pytest.raises(AssertionError):
                replay(ran, number, {})
            return
        seen.add(task.client.id)


def test_stage_two_leaves_encoder_and_instance_projector_to_the_bit(ran: Federated) -> None:
    before = next(s for s, phase, *_ in ran.spy.served if phase.stage == "clustering")
    after = ran.state.server
    assert "online.encoder.network.2.running_mean" in after.slots["encoder"]
    for slot in ("encoder", "instance"):
        assert same_bits(before.slots[slot], after.slots[slot])
        assert not same_bits(ran.start.slots[slot], after.slots[slot])
    assert not same_bits(before.slots["cluster"], after.slots["cluster"])


def test_stage_one_leaves_the_cluster_projector_to_the_bit(ran: Federated) -> None:
    before = next(s for s, phase, *_ in ran.spy.served if phase.stage == "clustering")
    assert same_bits(ran.start.slots["cluster"], before.slots["cluster"])


@pytest.mark.parametrize("aggregate_target", [False, True])
def test_the_server_averages_by_the_numbers_of_samples(aggregate_target: bool) -> None:
    ran = federate(tiny_workload(short(aggregate_target=aggregate_target)))
    targets = {"target_encoder", "target_instance"} if aggregate_target else set()
    assert ran.spy.served[0][1].up == {"encoder", "instance"} | targets
    for number, (_, phase, _, _, after) in enumerate(ran.spy.served, start=1):
        tasks = [task for task in ran.spy.tasks if task.phase.round == number]
        assert {t.client.id: t.outcome.up[s].weight for t in tasks for s in phase.up} == {
            0: 13,
            1: 22,
            2: 9,
        }
        for slot in phase.up:
            for name, value in slow_mean([task.outcome.up[slot] for task in tasks]).items():
                torch.testing.assert_close(after.slots[slot][name], value, rtol=0, atol=1e-14)


def test_aggregated_targets_are_sent_and_not_kept() -> None:
    ran = federate(tiny_workload(short(aggregate_target=True)))
    stages = {}
    for task in ran.spy.tasks:
        stages[task.phase.stage] = (set(task.slots), set(task.outcome.up))
        assert task.outcome.state is None
        for part in PARTS[task.phase.stage]:
            names = [name.split(".")[:2] for name in task.slots[f"target_{part}"]]
            assert names == [["target", part]] * len(names) != []
    both = {"encoder", "instance", "target_encoder", "target_instance"}
    clusters = {"cluster", "target_cluster"}
    assert stages == {
        "representation": (both, both),
        "clustering": (clusters | {"encoder"}, clusters),
    }
    # The clients' targets moved, so their mean is neither the start nor the online network.
    slots = ran.state.server.slots
    for part in PARTS["joint"]:
        name = next(n for n in slots[f"target_{part}"] if n.endswith("weight"))
        target = slots[f"target_{part}"][name]
        assert not torch.equal(target, ran.start.slots[f"target_{part}"][name])
        assert not torch.equal(target, slots[part][name.replace("target", "online")])


def test_the_model_clusters_only_once_that_is_trained(ran: Federated) -> None:
    samples = torch.from_numpy(ran.backend.worker.samples["train"])
    for state, clusters in (
        (ran.start, False),
        (ran.spy.served[2][4], False),
        (ran.state.server, True),
    ):
        model = ran.spy.model_for(state, None).eval()
        prediction = model(samples)
        module = MomentumContrast(ran.config, tiny_task(), "joint").eval()
        for tensors in state.slots.values():
            module.load_state_dict(dict(tensors), strict=False)
        hidden = module.online.encoder(samples.double() / 255.0)
        assert torch.equal(prediction.embedding, hidden)
        assert (model.head is not None) is clusters
        if clusters:
            assert torch.equal(prediction.probabilities, module.online.cluster(hidden))


def test_views_of_stage_2_that_do_not_fit_are_refused_at_the_start() -> None:
    vectors = replace(tiny_task(), shape=(5,))
    own = FedMCC.Config(
        clustering_augmentation={"target": "coterie.datamodules.augmentations:DigitsAugmentation"}
    )
    with pytest.raises(ConfigError) as refusal:
        FedMCC(own, vectors)
    assert str(refusal.value).startswith(
        "method.clustering_augmentation: augmentation=DigitsAugmentation: it takes images ("
    )
    FedMCC(FedMCC.Config(), vectors)


@pytest.mark.parametrize("restart", [True, False])
def test_a_restarted_target_begins_every_round_as_the_global_network(
    restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins: list[tuple[str, bool]] = []
    original = MomentumContrast.on_train_epoch_start

    def start(self: MomentumContrast) -> None:
        equal = same_bits(self.online.state_dict(), self.target.state_dict())
        begins.append((self.stage, equal))
        original(self)

    monkeypatch.setattr(MomentumContrast, "on_train_epoch_start", start)
    ran = federate(tiny_workload(short(restart_target=restart, clustering_epochs=1)))
    clients = len(ran.spy.tasks) // ran.spy.rounds
    for stage, rounds in (("representation", 3), ("clustering", 2)):
        equal = [same for at, same in begins if at == stage]
        assert equal == [True] * clients + [restart] * clients * (rounds - 1)
    for task in ran.spy.tasks:
        assert (task.outcome.state is None) is restart
        assert not [slot for slot in task.slots if slot.startswith("target")]


def test_a_target_is_averaged_or_restarted_not_both() -> None:
    with pytest.raises(ConfigError, match="averaged or starts afresh; set one of them"):
        FedMCC(short(aggregate_target=True, restart_target=True), tiny_task())


ROUNDS = {"representation_rounds": 2, "clustering_rounds": 3}

SCALAR = 8
"""Bytes of a float64, of an int64 weight, of a metric."""
NUMBERS = {
    # Linear 64→8 without bias, BatchNorm (weight, bias, mean, variance), Linear 8→6.
    "encoder": 64 * 8 + 4 * 8 + (8 * 6 + 6),
    # Hidden width 6, as the representation; 5 outputs and 3 clusters.
    "instance": (6 * 6 + 6) + (6 * 5 + 5),
    "cluster": (6 * 6 + 6) + (6 * 3 + 3),
}


def config(**changes: Any) -> FedMCC.Config:
    short = {"projection": 5, "batch_size": 8, "representation_epochs": 1, "clustering_epochs": 1}
    return FedMCC.Config(**short, **ROUNDS, **changes)


@pytest.fixture(scope="module")
def audited() -> Federated:
    return federate(tiny_workload(config()))


def parts(tensors: dict[str, Tensor]) -> set[str]:
    return {".".join(name.split(".")[:2]) for name in tensors}


def test_only_the_declared_networks_cross(audited: Federated) -> None:
    assert len(audited.spy.tasks) == 5 * len(SIZES)
    for task in audited.spy.tasks:
        down = set().union(*(parts(tensors) for tensors in task.slots.values()))
        up = set().union(*(parts(mean.tensors) for mean in task.outcome.up.values()))
        if task.phase.stage == "representation":
            assert down == up == {"online.encoder", "online.instance"}
        else:
            assert down == {"online.encoder", "online.cluster"}
            assert up == {"online.cluster"}
        assert task.outcome.gathered == {}
        assert task.outcome.peer_messages == {}
        assert set(task.outcome.metrics) == {"loss", "instance", "cluster", "entropy"}


def test_no_bookkeeping_crosses(audited: Federated) -> None:
    for task in audited.spy.tasks:
        sent = [*task.slots.values(), *(mean.tensors for mean in task.outcome.up.values())]
        assert not [name for tensors in sent for name in tensors if "num_batches" in name]


def test_targets_cross_only_if_asked_for(audited: Federated) -> None:
    asked = federate(tiny_workload(config(aggregate_target=True)))
    for one, expected in ((audited, False), (asked, True)):
        for task in one.spy.tasks:
            sent = [*task.slots.values(), *(mean.tensors for mean in task.outcome.up.values())]
            names = {name for tensors in sent for name in tensors}
            assert any(name.startswith("target.") for name in names) is expected


@pytest.mark.parametrize("aggregate_target", [False, True])
@pytest.mark.parametrize("stage", list(PARTS))
def test_every_state_entry_has_a_role(stage: str, aggregate_target: bool) -> None:
    given = config(aggregate_target=aggregate_target)
    roles = FedMCC(given, tiny_task()).roles(stage)
    module = MomentumContrast(given, tiny_task(), stage)
    roles.check(module)
    kept = {name for name in module.state_dict() if roles.of(name).role is Role.KEEP}
    targets = set() if aggregate_target else {f"target.{part}" for part in PARTS[stage]}
    assert parts(dict.fromkeys(kept)) == targets
    with pytest.raises(ContractError, match="has no role"):
        roles.of("predictor.weight")


def test_a_client_keeps_only_the_stages_targets(audited: Federated) -> None:
    for task in audited.spy.tasks:
        wanted = {f"target.{part}" for part in PARTS[task.phase.stage]}
        assert parts(task.outcome.state) == wanted
        assert not [name for name in task.outcome.state if "num_batches" in name]
    assert all(parts(kept) == {"target.cluster"} for kept in audited.kept.values())
    assert set(audited.kept) == {0, 1, 2}


def test_bytes_of_each_phase_are_those_counted_by_hand(audited: Federated) -> None:
    size = {part: SCALAR * count * len(SIZES) for part, count in NUMBERS.items()}
    weight = SCALAR * len(SIZES)
    metrics = 4 * SCALAR * len(SIZES)
    for commit in audited.commits:
        assert commit.traffic.peer == {}
        if commit.phase.stage == "representation":
            assert commit.traffic.down == {p: size[p] for p in ("encoder", "instance")}
            up = {p: size[p] + weight for p in ("encoder", "instance")}
        else:
            down = {"cluster": size["cluster"]}
            # The last average of stage 1 is news, once; after that the encoder stands still.
            if commit.phase.round == 3:
                down["encoder"] = size["encoder"]
            assert commit.traffic.down == down
            up = {"cluster": size["cluster"] + weight}
        assert commit.traffic.up == {**up, "metrics": metrics}


def test_the_ledger_is_the_sum_over_the_phases(audited: Federated) -> None:
    ledger = audited.state.ledger
    first = 2 * (NUMBERS["encoder"] + NUMBERS["instance"])
    second = NUMBERS["encoder"] + 3 * NUMBERS["cluster"]
    assert ledger.down == SCALAR * len(SIZES) * (first + second)
    assert ledger.up == SCALAR * len(SIZES) * (first + 2 * 2 + 3 * (NUMBERS["cluster"] + 1) + 5 * 4)
    assert ledger.peer == 0


def test_a_latecomer_is_sent_the_frozen_encoder_once() -> None:
    audited = federate(tiny_workload(config(participation=0.3), seed=0))
    encoder = SCALAR * NUMBERS["encoder"]
    has_it: set[int] = set()
    late = 0
    for commit, task in zip(audited.commits, audited.spy.tasks, strict=True):
        if commit.phase.stage == "clustering":
            news = task.client.id not in has_it
            assert commit.traffic.down.get("encoder", 0) == (encoder if news else 0)
            late += bool(has_it) and news
            has_it.add(task.client.id)
    assert late, "nobody came late: choose another seed"


class Watching:
    """A trainer that keeps what it was given to train on."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.batches = trainer, []

    def fit(self, module: Any, batches: Any, seed: int) -> Any:
        watched = self

        class Watched:
            epochs = batches.epochs

            def __len__(self) -> int:
                return len(batches)

            def __iter__(self) -> Any:
                for batch in batches:
                    watched.batches.append(dict(batch))
                    yield batch

        return self.trainer.fit(module, Watched(), seed)


@pytest.mark.parametrize("executor", ["bare", "lightning"])
def test_training_sees_no_label(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []
    original = MomentumContrast.training_step

    def step(self: Any, batch: Any, batch_idx: int) -> Any:
        steps.append(batch)
        return original(self, batch, batch_idx)

    monkeypatch.setattr(MomentumContrast, "training_step", step)
    watching: list[Watching] = []
    plain = SerialBackend.__init__

    def init(self: Any, *args: Any) -> None:
        plain(self, *args)
        watching.append(Watching(self.worker.trainer))
        self.worker.trainer = watching[0]

    monkeypatch.setattr(SerialBackend, "__init__", init)
    federate(tiny_workload(config(), executor=executor))
    assert len(steps) == len(watching[0].batches) == 5 * (2 + 3 + 1)
    assert all(set(batch) == {"samples", "positions", "seed"} for batch in watching[0].batches)
    for views in steps:
        assert isinstance(views, tuple)
        assert [view.shape[1:] for view in views] == [SHAPE, SHAPE]
        assert all(view.dtype == torch.float64 for view in views)


def test_labels_are_out_of_a_clients_reach(audited: Federated) -> None:
    assert not FedMCC.needs_labels
    for task in audited.spy.tasks:
        assert task.client.data.labels is None
        with pytest.raises(ContractError, match="hidden from unsupervised methods"):
            task.client.data.take_labels()


SMALL = (
    "experiment=fedmcc_digits",
    "cluster=serial",
    "data.limit=100",
    "encoder=mlp",
    "encoder.hidden=[16]",
    "encoder.features=8",
    "method.hidden=8",
    "method.representation_rounds=1",
    "method.clustering_rounds=2",
    "method.cluster_heads=3",
)


@pytest.fixture(scope="module")
def assembly():
    return assemble(compose(*SMALL))


def module_of(assembly, **update):
    config = assembly.workload.config.method.model_copy(update=update)
    torch.manual_seed(3)
    return MomentumContrast(config, assembly.workload.task, "clustering")


def test_the_loss_is_the_mean_of_the_heads_own_losses(assembly):
    module = module_of(assembly)
    views = tuple(torch.rand(12, 1, 8, 8) for _ in range(2))
    terms = module.training_step(views, 0)
    own = [terms[f"head_loss/{i}"] for i in range(3)]
    assert terms["loss"].item() == pytest.approx(torch.stack(own).mean().item(), abs=1e-5)
    single = module_of(assembly, cluster_heads=1)
    for i in range(3):
        single.online.encoder.load_state_dict(module.online.encoder.state_dict())
        single.online.cluster.load_state_dict(module.online.cluster.heads[i].state_dict())
        single.target.cluster.load_state_dict(module.target.cluster.heads[i].state_dict())
        assert single.training_step(views, 0)["loss"].item() == pytest.approx(
            own[i].item(), abs=1e-5
        )


def test_no_head_touches_anothers_gradient(assembly):
    module = module_of(assembly)
    views = tuple(torch.rand(12, 1, 8, 8) for _ in range(2))
    module.training_step(views, 0)["head_loss/1"].backward()
    touched = [
        any(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())
        for head in module.online.cluster.heads
    ]
    assert touched == [False, True, False]


def test_the_server_keeps_the_head_of_lowest_running_loss(assembly):
    method, server = assembly.method, assembly.server
    server = server.advance(method.next(server), {})
    phase = method.next(server)
    assert (phase.stage, phase.gathered) == ("clustering", {"head_losses"})
    mean = {"cluster": WeightedUpdate(weight=1, tensors=server.slots["cluster"])}
    first = {
        0: {"head_losses": torch.tensor([-1.0, -3.0, 0.0], dtype=torch.float64)},
        1: {"head_losses": torch.tensor([-2.0, -1.0, 0.0], dtype=torch.float64)},
    }
    server = method.server(server, phase, mean, first)
    assert server.metadata == {"head_losses": [-1.5, -2.0, 0.0], "head": 1}
    second = {0: {"head_losses": torch.tensor([-4.0, -2.0, 0.0], dtype=torch.float64)}}
    server = method.server(server, method.next(server), mean, second)
    assert server.metadata["head_losses"] == pytest.approx([-2.25, -2.0, 0.0])
    assert server.metadata["head"] == 0
    model = method.model_for(server, None)
    kept = server.slots["cluster"]["online.cluster.heads.0.layers.0.weight"]
    assert torch.equal(model.head.layers[0].weight, kept)


def test_head_losses_are_in_the_heads_order():
    metrics = {"loss": 1.0, "head_loss/10": 10.0, "head_loss/2": 2.0, "head_loss/0": 0.0}
    assert head_losses(metrics).tolist() == [0.0, 2.0, 10.0]


def test_one_head_sends_no_record(assembly):
    one = assemble(compose(*SMALL, "method.cluster_heads=1"))
    server = one.server.advance(one.method.next(one.server), {})
    assert one.method.next(server).gathered == frozenset()
