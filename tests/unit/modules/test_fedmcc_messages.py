"""What crosses the network in FedMCC, key by key and byte by byte."""

from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.contract.rules import Rule
from coterie.errors import ContractError
from coterie.execution.serial import SerialBackend
from modules.fedmcc import FedMCC
from modules.mcc import PARTS, MomentumContrast
from tests.small_federation import SHAPE, SIZES, Federated, federate, tiny_task, tiny_workload

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
def ran() -> Federated:
    return federate(tiny_workload(config()))


def parts(tensors: dict[str, Tensor]) -> set[str]:
    return {".".join(name.split(".")[:2]) for name in tensors}


def test_only_the_declared_networks_cross(ran: Federated) -> None:
    assert len(ran.spy.turns) == 5 * len(SIZES)
    for turn in ran.spy.turns:
        down = set().union(*(parts(tensors) for tensors in turn.slots.values()))
        up = set().union(*(parts(mean.tensors) for mean in turn.outcome.up.values()))
        if turn.phase.stage == "representation":
            assert down == up == {"online.encoder", "online.instance"}
        else:
            assert down == {"online.encoder", "online.cluster"}
            assert up == {"online.cluster"}
        assert turn.outcome.records == {}
        assert turn.outcome.mail == {}
        assert set(turn.outcome.metrics) == {"loss", "instance", "cluster", "entropy"}


def test_no_bookkeeping_crosses(ran: Federated) -> None:
    for turn in ran.spy.turns:
        sent = [*turn.slots.values(), *(mean.tensors for mean in turn.outcome.up.values())]
        assert not [name for tensors in sent for name in tensors if "num_batches" in name]


def test_targets_cross_only_if_asked_for(ran: Federated) -> None:
    asked = federate(tiny_workload(config(aggregate_target=True)))
    for one, expected in ((ran, False), (asked, True)):
        for turn in one.spy.turns:
            sent = [*turn.slots.values(), *(mean.tensors for mean in turn.outcome.up.values())]
            names = {name for tensors in sent for name in tensors}
            assert any(name.startswith("target.") for name in names) is expected


@pytest.mark.parametrize("aggregate_target", [False, True])
@pytest.mark.parametrize("stage", list(PARTS))
def test_every_state_entry_has_a_rule(stage: str, aggregate_target: bool) -> None:
    method = FedMCC(config(aggregate_target=aggregate_target), tiny_task())
    rules, module = method.rules(stage), MomentumContrast(method._config, tiny_task(), stage)
    rules.check(module)
    kept = {name for name in module.state_dict() if rules.of(name).rule is Rule.KEEP}
    targets = set() if aggregate_target else {f"target.{part}" for part in PARTS[stage]}
    assert parts(dict.fromkeys(kept)) == targets
    with pytest.raises(ContractError, match="has no rule"):
        rules.of("predictor.weight")


def test_a_client_keeps_only_the_stages_targets(ran: Federated) -> None:
    for turn in ran.spy.turns:
        wanted = {f"target.{part}" for part in PARTS[turn.phase.stage]}
        assert parts(turn.outcome.state) == wanted
        assert not [name for name in turn.outcome.state if "num_batches" in name]
    assert all(parts(kept) == {"target.cluster"} for kept in ran.kept.values())
    assert set(ran.kept) == {0, 1, 2}


def test_bytes_of_each_phase_are_those_counted_by_hand(ran: Federated) -> None:
    size = {part: SCALAR * count * len(SIZES) for part, count in NUMBERS.items()}
    weight = SCALAR * len(SIZES)
    metrics = 4 * SCALAR * len(SIZES)
    for commit in ran.commits:
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


def test_the_ledger_is_the_sum_over_the_phases(ran: Federated) -> None:
    ledger = ran.state.ledger
    first = 2 * (NUMBERS["encoder"] + NUMBERS["instance"])
    second = NUMBERS["encoder"] + 3 * NUMBERS["cluster"]
    assert ledger.down == SCALAR * len(SIZES) * (first + second)
    assert ledger.up == SCALAR * len(SIZES) * (first + 2 * 2 + 3 * (NUMBERS["cluster"] + 1) + 5 * 4)
    assert ledger.peer == 0


def test_a_latecomer_is_sent_the_frozen_encoder_once() -> None:
    ran = federate(tiny_workload(config(participation=0.3), seed=0))
    encoder = SCALAR * NUMBERS["encoder"]
    has_it: set[int] = set()
    late = 0
    for commit, turn in zip(ran.commits, ran.spy.turns, strict=True):
        if commit.phase.stage == "clustering":
            news = turn.client.id not in has_it
            assert commit.traffic.down.get("encoder", 0) == (encoder if news else 0)
            late += bool(has_it) and news
            has_it.add(turn.client.id)
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
        watching.append(Watching(self._worker.trainer))
        self._worker.trainer = watching[0]

    monkeypatch.setattr(SerialBackend, "__init__", init)
    federate(tiny_workload(config(), executor=executor))
    assert len(steps) == len(watching[0].batches) == 5 * (2 + 3 + 1)
    assert all(set(batch) == {"samples", "positions", "seed"} for batch in watching[0].batches)
    for views in steps:
        assert isinstance(views, tuple)
        assert [view.shape[1:] for view in views] == [SHAPE, SHAPE]
        assert all(view.dtype == torch.float64 for view in views)


def test_labels_are_out_of_a_clients_reach(ran: Federated) -> None:
    assert not FedMCC.needs_labels
    for turn in ran.spy.turns:
        assert turn.client.data.labels is None
        with pytest.raises(ContractError, match="out of an unsupervised method's reach"):
            turn.client.data.take_labels()
