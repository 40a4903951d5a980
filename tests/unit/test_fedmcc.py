"""FedMCC's rounds: schedule, targets kept by clients, what stage 2 leaves alone, averaging."""

from dataclasses import replace

import pytest
import torch

from coterie.contract import Plan, ServerState, Tensors
from coterie.contract.client import ClientData
from coterie.contract.seeds import derive_seed, seeded
from coterie.errors import ConfigError
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.batches import SeededBatches
from modules.fedmcc import MCC, FedMCC
from modules.mcc import PARTS, MomentumContrast
from tests.small_federation import (
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
    """Train the recorded turn again by hand, and compare it with what the engine made of it."""
    turn = ran.spy.turns[number]
    stage, client = turn.phase.stage, turn.client
    with seeded(derive_seed(5, "init")):
        module = MomentumContrast(ran.spy._config, tiny_task(), stage)
    state = module.state_dict()
    for tensors in turn.slots.values():
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
    for slot, mean in turn.outcome.up.items():
        for name, value in mean.tensors.items():
            assert torch.equal(module.state_dict()[name], value), (number, slot, name)
    kept[client.id] = {
        name: value.clone()
        for name, value in module.state_dict().items()
        if name.startswith("target.")
        and name.split(".")[1] in PARTS[stage]
        and "num_batches" not in name
    }
    assert same_bits(kept[client.id], turn.outcome.state)


def test_targets_start_from_the_global_model_and_are_kept_after_that(ran: Federated) -> None:
    kept: dict[int, Tensors] = {}
    for number in range(len(ran.spy.turns)):
        replay(ran, number, kept)
    assert len(ran.spy.turns) == 10
    first = {}
    for turn in ran.spy.turns:
        first.setdefault(turn.client.id, (turn.phase.round, turn.client.state))
    assert {state for _, state in first.values()} == {None}
    assert max(number for number, _ in first.values()) > 1, "nobody came late: choose another seed"


def test_a_forgotten_target_would_be_noticed(ran: Federated) -> None:
    seen: set[int] = set()
    for number, turn in enumerate(ran.spy.turns):
        if turn.client.id in seen:
            with pytest.raises(AssertionError):
                replay(ran, number, {})
            return
        seen.add(turn.client.id)


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
        turns = [turn for turn in ran.spy.turns if turn.phase.round == number]
        assert {t.client.id: t.outcome.up[s].weight for t in turns for s in phase.up} == {
            0: 13,
            1: 22,
            2: 9,
        }
        for slot in phase.up:
            for name, value in slow_mean([turn.outcome.up[slot] for turn in turns]).items():
                torch.testing.assert_close(after.slots[slot][name], value, rtol=0, atol=1e-14)


def test_aggregated_targets_are_sent_and_not_kept() -> None:
    ran = federate(tiny_workload(short(aggregate_target=True)))
    stages = {}
    for turn in ran.spy.turns:
        stages[turn.phase.stage] = (set(turn.slots), set(turn.outcome.up))
        assert turn.outcome.state is None
        for part in PARTS[turn.phase.stage]:
            names = [name.split(".")[:2] for name in turn.slots[f"target_{part}"]]
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
    samples = torch.from_numpy(ran.backend._worker.samples["train"])
    for state, clusters in (
        (ran.start, False),
        (ran.spy.served[2][4], False),
        (ran.state.server, True),
    ):
        model = ran.spy.model_for(state, None).eval()
        prediction = model(samples)
        module = MomentumContrast(ran.spy._config, tiny_task(), "joint").eval()
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
        clustering_augmentation={"target": "datamodules.augmentations:DigitsAugmentation"}
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
    clients = len(ran.spy.turns) // ran.spy.rounds
    for stage, rounds in (("representation", 3), ("clustering", 2)):
        equal = [same for at, same in begins if at == stage]
        assert equal == [True] * clients + [restart] * clients * (rounds - 1)
    for turn in ran.spy.turns:
        assert (turn.outcome.state is None) is restart
        assert not [slot for slot in turn.slots if slot.startswith("target")]


def test_a_target_is_averaged_or_restarted_not_both() -> None:
    with pytest.raises(ConfigError, match="averaged or starts afresh; set one of them"):
        FedMCC(short(aggregate_target=True, restart_target=True), tiny_task())
