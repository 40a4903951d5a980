"""CP-CFL's rounds: its identities, who chooses what, what is frozen, resumption."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.contract import ServerState
from coterie.contract.seeds import derive_seed
from coterie.execution.serial import SerialBackend
from coterie.models.pretrained_encoder import frozen
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from modules.cpcfl import CPCFL, IFCA, chosen_at_random, chosen_by_loss
from modules.fedavg import FedAvg
from tests.checkpoints import save
from tests.small_federation import (
    SIZES,
    Federated,
    Silent,
    TinyEncoder,
    same_bits,
    slow_mean,
    tiny_task,
)
from tests.small_pool import models, pool_workload, ran_with, run_from, short, short_ifca


@pytest.fixture(scope="module")
def ran() -> Federated:
    return ran_with(short())


def test_defaults_are_those_of_the_paper() -> None:
    config = CPCFL.Config()
    assert (config.rounds, config.explore_rounds, config.clusters) == (100, 10, 3)
    assert (config.epochs, config.batch_size, config.head_layers) == (3, 32, 0)
    assert (config.optimizer, config.learning_rate) == ("adam", 1e-3)
    assert (config.encoder_epochs, config.shared_encoder, config.initial) == (None, False, "common")
    assert (IFCA.Config().explore_rounds, IFCA.Config().initial) == (0, "independent")


class FrozenTiny(TinyEncoder):
    """The same network with the same initial values, out of any optimiser's reach."""

    def build(self, shape: tuple[int, ...]) -> Any:
        return frozen(super().build(shape))


@pytest.mark.parametrize("explore", [0, 2])
def test_one_model_is_fedavg_from_the_same_start_to_the_bit(explore: int) -> None:
    ours = ran_with(short(clusters=1, explore_rounds=explore, rounds=4)).state.server.slots
    config = FedAvg.Config(optimizer="adam", learning_rate=0.01, batch_size=8, epochs=2, rounds=4)
    workload = pool_workload(config)
    task = replace(workload.task, encoder=FrozenTiny())
    first = FedAvg(config.model_copy(update={"rounds": explore}), task)
    start = first.init(dict(enumerate(SIZES)), derive_seed(5, "init"))
    still = run_from(replace(workload, task=task), RunState(server=start), first).server
    state = RunState(server=ServerState(slots=still.slots, round=explore))
    theirs = run_from(workload, state, FedAvg(config, workload.task)).server.slots
    assert same_bits(ours["encoder/0"], theirs["encoder"])
    assert same_bits(ours["head/0"], theirs["classifier"])
    assert not same_bits(theirs["encoder"], start.slots["encoder"])


def test_without_exploration_and_with_independent_models_it_is_ifca() -> None:
    ours = ran_with(short(explore_rounds=0, initial="independent", clusters=3))
    theirs = ran_with(short_ifca(clusters=3))
    for one, other in zip(
        models(ours.state.server.slots, 3), models(theirs.state.server.slots, 3), strict=True
    ):
        assert same_bits(one, other)
    begun = models(theirs.start.slots, 3)
    assert not any(same_bits(begun[0], other) for other in begun[1:])


def test_encoders_stay_equal_to_the_bit_while_clients_explore(ran: Federated) -> None:
    for _, phase, means, _, after in ran.spy.served[:2]:
        assert phase.stage == "exploration"
        assert all(slot.startswith("head/") for slot in means)
        for n in range(2):
            assert same_bits(after.slots[f"encoder/{n}"], ran.start.slots["encoder/0"])
    assert ran.spy.served[2][1].stage == "exploitation"
    last = ran.state.server.slots
    chosen = {n for row in ran.spy.client_groups(ran.state.server).values() for n in row}
    assert not same_bits(last[f"encoder/{min(chosen)}"], ran.start.slots["encoder/0"])


def test_permuting_the_pool_permutes_identities() -> None:
    config = short_ifca(clusters=3, rounds=3)
    plain = ran_with(config)
    order = [2, 0, 1]  # model n of the other pool is model order[n] of this one
    slots = {
        f"{part}/{n}": plain.start.slots[f"{part}/{order[n]}"]
        for part in ("encoder", "head")
        for n in range(3)
    }
    state = RunState(server=replace(plain.start, slots=slots))
    other = run_from(pool_workload(config), state).server
    ours = plain.spy.client_groups(plain.state.server)
    theirs = plain.spy.client_groups(other)
    assert {r: [order[n] for n in row] for r, row in theirs.items()} == ours
    assert len({n for row in ours.values() for n in row}) > 1
    for n in range(3):
        assert same_bits(models(other.slots, 3)[n], models(plain.state.server.slots, 3)[order[n]])


def test_a_model_that_nobody_chose_keeps_its_bits(ran: Federated) -> None:
    seen = 0
    for before, _, means, records, after in ran.spy.served:
        chosen = {int(record["choice"]) for record in records.values()}
        assert {slot for slot in means if slot.startswith("head/")} == {f"head/{n}" for n in chosen}
        for n in {0, 1} - chosen:
            seen += 1
            assert same_bits(models(before.slots, 2)[n], models(after.slots, 2)[n])
    wide = ran_with(short(clusters=5, rounds=2))
    assert len(wide.spy.served[0][2]) < 5
    assert seen or len(wide.spy.served[0][2]) < 5


def test_a_model_is_averaged_over_those_who_chose_it(ran: Federated) -> None:
    for number, (_, phase, _, records, after) in enumerate(ran.spy.served):
        turns = ran.spy.turns[number * 3 : number * 3 + 3]
        for slot in phase.up:
            given = [turn.outcome.up[slot] for turn in turns if slot in turn.outcome.up]
            assert len(given) == sum(
                int(record["choice"]) == int(slot.rpartition("/")[2]) for record in records.values()
            )
            for name, value in slow_mean(given).items() if given else ():
                torch.testing.assert_close(after.slots[slot][name], value, rtol=0, atol=1e-12)


def test_clients_choose_at_random_while_they_explore() -> None:
    drawn = [chosen_at_random(4, derive_seed(1, "client", n)) for n in range(4000)]
    counts = np.bincount(drawn, minlength=4)
    assert (abs(counts - 1000) < 4 * np.sqrt(750)).all()
    ran = ran_with(short(rounds=2, clusters=4))
    for turn in ran.spy.turns:
        assert int(turn.outcome.records["choice"]) == chosen_at_random(4, turn.client.seed)


def test_of_equal_losses_the_lowest_index_wins_and_a_broken_model_never_does(ran: Any) -> None:
    client = ran.spy.turns[1].client
    shape = nn.Sequential(nn.Flatten(), nn.Linear(64, 3, dtype=torch.float64))
    equal, broken = shape.requires_grad_(False), nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    broken = broken.double().requires_grad_(False)
    broken[1].weight.fill_(torch.nan)
    assert chosen_by_loss(client, [equal, equal, equal]) == 0
    assert chosen_by_loss(client, [broken, equal, equal]) == 1


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_the_encoder_is_trained_in_its_epochs_only(epochs: int) -> None:
    ran = ran_with(short(encoder_epochs=epochs, explore_rounds=0, rounds=1, clusters=1))
    start, sent = ran.start.slots["encoder/0"], ran.spy.turns[0].outcome.up.get("encoder/0")
    if epochs == 0:
        assert sent is None
        assert same_bits(ran.state.server.slots["encoder/0"], start)
        return
    assert not same_bits(sent.tensors, start)
    batches = {1: 2, 2: 4}  # 13 samples in batches of 8, twice; statistics move in each
    mean, other = (
        "encoder.network.2.running_mean",
        ran_with(short(encoder_epochs=None, explore_rounds=0, rounds=1, clusters=1))
        .spy.turns[0]
        .outcome.up["encoder/0"]
        .tensors,
    )
    assert torch.equal(sent.tensors[mean], other[mean]) is (batches[epochs] == 4)


def test_a_pretrained_frozen_encoder_is_never_sent_up() -> None:
    config = short(rounds=4)
    workload = pool_workload(config)
    task = replace(workload.task, encoder=FrozenTiny())
    method = CPCFL(config, task)
    start = method.init(dict(enumerate(SIZES)), 3)
    state = start
    for _ in range(4):
        phase = method.next(state)
        assert phase.up == {"head/0", "head/1"}
        assert phase.down == {"head/0", "head/1", "encoder/0"}
        state = state.advance(phase, {})
    assert method.next(state) is None


def test_a_shared_encoder_is_averaged_over_all_clients() -> None:
    ran = ran_with(short(shared_encoder=True, explore_rounds=0, rounds=2, clusters=3))
    for number, (_, _, _, _, after) in enumerate(ran.spy.served):
        given = [t.outcome.up["encoder"] for t in ran.spy.turns[number * 3 : number * 3 + 3]]
        assert [mean.weight for mean in given] == list(SIZES)
        for name, value in slow_mean(given).items():
            torch.testing.assert_close(after.slots["encoder"][name], value, rtol=0, atol=1e-12)
    assert set(ran.start.slots) == {"encoder", "head/0", "head/1", "head/2"}


@pytest.mark.parametrize("phases", [1, 3])
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(
    ran: Federated, phases: int, tmp_path: Any
) -> None:
    workload = pool_workload(short())
    method = CPCFL(short(), replace(tiny_task(), augmentation=workload.task.augmentation))

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
    assert state.server.facts == ran.state.server.facts
    for slot, tensors in ran.state.server.slots.items():
        assert same_bits(tensors, state.server.slots[slot])
