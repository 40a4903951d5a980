"""CP-CFL and IFCA: identities, the pool and its restarts, messages, resumption, refusals."""

import logging
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from torch import nn

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.config.aggregation import AggregationConfig
from coterie.config.participation import ParticipationConfig
from coterie.contract import ServerState
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError
from coterie.execution.serial import SerialBackend
from coterie.modules.choice_history import (
    ABSENT,
    favourite,
    history,
    latest_choices,
    smallest_share,
)
from coterie.modules.classification import ROLES, Classification, head
from coterie.modules.cpcfl import (
    CPCFL,
    IFCA,
    chosen_at_random,
    chosen_by_loss,
    has_failed,
    is_due,
)
from coterie.modules.fedavg import FedAvg
from coterie.networks.frozen import frozen
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from tests.builders.checkpoints import save
from tests.builders.cpcfl import models, pool_workload, ran_with, run_from, short, short_ifca
from tests.builders.federation import SIZES, Federated, TinyEncoder, same_bits, slow_mean, tiny_task
from tests.builders.observers import Silent


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
    # Pydantic's own copy, as a run of no round is refused.
    first = FedAvg(BaseModel.model_copy(config, update={"rounds": explore}), task)
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
    for before, _, means, gathered, after in ran.spy.served:
        chosen = {int(record["choice"]) for record in gathered.values()}
        assert {slot for slot in means if slot.startswith("head/")} == {f"head/{n}" for n in chosen}
        for n in {0, 1} - chosen:
            seen += 1
            assert same_bits(models(before.slots, 2)[n], models(after.slots, 2)[n])
    wide = ran_with(short(clusters=5, rounds=2))
    assert len(wide.spy.served[0][2]) < 5
    assert seen or len(wide.spy.served[0][2]) < 5


def test_a_model_is_averaged_over_those_who_chose_it(ran: Federated) -> None:
    for number, (_, phase, _, gathered, after) in enumerate(ran.spy.served):
        tasks = ran.spy.tasks[number * 3 : number * 3 + 3]
        for slot in phase.up:
            given = [task.outcome.up[slot] for task in tasks if slot in task.outcome.up]
            assert len(given) == sum(
                int(record["choice"]) == int(slot.rpartition("/")[2])
                for record in gathered.values()
            )
            for name, value in slow_mean(given).items() if given else ():
                torch.testing.assert_close(after.slots[slot][name], value, rtol=0, atol=1e-12)


def test_clients_choose_at_random_while_they_explore() -> None:
    drawn = [chosen_at_random(4, derive_seed(1, "client", n)) for n in range(4000)]
    counts = np.bincount(drawn, minlength=4)
    assert (abs(counts - 1000) < 4 * np.sqrt(750)).all()
    ran = ran_with(short(rounds=2, clusters=4))
    for task in ran.spy.tasks:
        assert int(task.outcome.gathered["choice"]) == chosen_at_random(4, task.client.seed)


def test_of_equal_losses_the_lowest_index_wins_and_a_broken_model_never_does(ran: Any) -> None:
    client = ran.spy.tasks[1].client
    shape = nn.Sequential(nn.Flatten(), nn.Linear(64, 3, dtype=torch.float64))
    equal, broken = shape.requires_grad_(False), nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    broken = broken.double().requires_grad_(False)
    broken[1].weight.fill_(torch.nan)
    assert chosen_by_loss(client, [equal, equal, equal]) == 0
    assert chosen_by_loss(client, [broken, equal, equal]) == 1


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_the_encoder_is_trained_in_its_epochs_only(epochs: int) -> None:
    ran = ran_with(short(encoder_epochs=epochs, explore_rounds=0, rounds=1, clusters=1))
    start, sent = ran.start.slots["encoder/0"], ran.spy.tasks[0].outcome.up.get("encoder/0")
    if epochs == 0:
        assert sent is None
        assert same_bits(ran.state.server.slots["encoder/0"], start)
        return
    assert not same_bits(sent.tensors, start)
    batches = {1: 2, 2: 4}  # 13 samples in batches of 8, twice; statistics move in each
    mean, other = (
        "encoder.network.2.running_mean",
        ran_with(short(encoder_epochs=None, explore_rounds=0, rounds=1, clusters=1))
        .spy.tasks[0]
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
        given = [t.outcome.up["encoder"] for t in ran.spy.tasks[number * 3 : number * 3 + 3]]
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
    assert state.server.metadata == ran.state.server.metadata
    for slot, tensors in ran.state.server.slots.items():
        assert same_bits(tensors, state.server.slots[slot])


@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_heads_have_the_papers_depths(layers: int) -> None:
    widths = [40, *(256, 128, 64)[:layers], 10]
    built = head(40, 10, layers)
    found = [tuple(p.shape) for p in built.parameters() if p.ndim == 2]
    assert found == [(b, a) for a, b in pairwise(widths)]
    assert sum(isinstance(part, nn.ReLU) for part in built.modules()) == layers
    assert built(torch.zeros(2, 40)).shape == (2, 10)


def test_clients_are_evaluated_with_the_model_they_chose_last(ran: Federated) -> None:
    server, samples = ran.state.server, torch.from_numpy(ran.backend.worker.samples["train"])
    chosen = ran.spy.client_groups(server)[4]
    for client, n in enumerate(chosen):
        found = ran.spy.model_for(server, client).eval()
        wanted = models(server.slots, 2)[n]
        state = {k: v for k, v in found.state_dict().items() if "num_batches" not in k}
        named = {k.replace("head.0.", "classifier."): v for k, v in state.items()}
        assert same_bits(dict(sorted(named.items())), dict(sorted(wanted.items())))
        assert found(samples).probabilities.shape == (44, 3)
    best = favourite(chosen)
    everybody = ran.spy.model_for(server, None).eval()(samples).embedding
    for client in (chosen.index(best), 99):
        assert torch.equal(ran.spy.model_for(server, client).eval()(samples).embedding, everybody)
    assert [favourite([]), favourite([2, 1, 2, 1]), favourite([3])] == [0, 1, 3]


def test_a_failed_clustering_begins_again_with_other_models() -> None:
    # Three models for three clients, each to be chosen by one of them: rare by chance.
    config = short_ifca(clusters=3, rounds=2, min_share=0.33, restart_after=1, max_restarts=40)
    ran = ran_with(config)
    metadata = ran.state.server.metadata
    tries = metadata["restarts"]
    assert tries > 0, "the first models did: take another seed"
    assert metadata["began"] == tries
    assert ran.state.server.round == tries + 2
    history = ran.spy.client_groups(ran.state.server)
    assert all(len(set(history[round_])) < 3 for round_ in range(1, tries + 1))
    assert len(set(history[tries + 1])) == 3
    pools = [ran.start, *(after for *_, after in ran.spy.served[:tries])]
    drawn = [state.slots["head/0"]["classifier.weight"] for state in pools]
    assert len({tuple(weight.flatten().tolist()) for weight in drawn}) == tries + 1


def test_restarts_end_with_a_warning(caplog: Any) -> None:
    config = short_ifca(clusters=5, rounds=2, min_share=0.2, restart_after=1, max_restarts=2)
    with caplog.at_level(logging.WARNING):
        ran = ran_with(config)
    assert (ran.state.server.round, ran.state.server.metadata["restarts"]) == (4, 2)
    assert "max_restarts=2 is used up; training goes on as it is" in caplog.text


def test_rounds_are_in_order_whatever_the_order_of_the_metadata() -> None:
    choices = {"10": [1, -1], "9": [0, 2]}
    server = ServerState(slots={}, metadata={"choices": choices})
    assert list(history(server).items()) == [(9, [0, 2]), (10, [1, -1])]
    assert latest_choices(server, after=0) == {0: 1, 1: 2}
    assert latest_choices(server, after=9) == {0: 1}


def test_shares_are_those_of_the_clients_that_took_part() -> None:
    assert smallest_share([0, 0, 1, 2], 3) == 0.25
    assert smallest_share([0, 0, 1], 3) == 0.0
    assert smallest_share([], 2) == 0.0


def test_a_model_for_each_client_is_training_alone() -> None:
    ran = ran_with(short(choice="client", clusters=3, explore_rounds=0, rounds=1))
    for task in ran.spy.tasks:
        n = task.client.id
        assert set(task.outcome.up) == {f"head/{n}", f"encoder/{n}"}
        for slot, mean in task.outcome.up.items():
            torch.testing.assert_close(
                ran.state.server.slots[slot], dict(mean.tensors), rtol=0, atol=1e-13
            )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"choice": "client"}, "clusters=2: choice=client needs a model for each of the 3 clients"),
        ({"min_share": 0.6}, "min_share=0.6: 2 models cannot all have that share; choose 0.5 or"),
        ({"min_share": 0.1, "clusters": 11}, "11 models cannot all .* choose 0.09 or less"),
        ({"initial": "independent", "shared_encoder": True}, "initial=independent: models that"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        CPCFL(short(**options), tiny_task()).init(dict(enumerate(SIZES)), 0)


def test_a_run_that_explores_to_its_end_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        CPCFL(short(rounds=3, explore_rounds=2), tiny_task()).init(dict(enumerate(SIZES)), 0)
        assert not caplog.records
        CPCFL(short(rounds=3, explore_rounds=3), tiny_task()).init(dict(enumerate(SIZES)), 0)
    assert "method.rounds=3: clients take models at random in the first 3" in caplog.text


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


def shapes(slots: Any) -> dict[str, dict[str, tuple[int, ...]]]:
    return {
        slot: {name: tuple(value.shape) for name, value in tensors.items()}
        for slot, tensors in slots.items()
    }


def test_exactly_these_tensors_cross(ran: Federated) -> None:
    heads = {"head/0": HEAD, "head/1": HEAD}
    assert len(ran.spy.tasks) == 4 * CLIENTS
    for task in ran.spy.tasks:
        outcome, round_ = task.outcome, task.phase.round
        choice = int(outcome.gathered["choice"])
        encoders = {"encoder/0": ENCODER} | ({"encoder/1": ENCODER} if round_ == 4 else {})
        assert shapes(task.slots) == heads | encoders
        up = {f"head/{choice}": HEAD} | ({f"encoder/{choice}": ENCODER} if round_ > 2 else {})
        assert shapes({slot: mean.tensors for slot, mean in outcome.up.items()}) == up
        assert set(outcome.gathered) == {"choice"}
        assert outcome.gathered["choice"].shape == ()
        assert set(outcome.metrics) == {"loss"}
        assert (outcome.state, outcome.peer_messages) == (None, {})


def test_every_state_entry_has_a_rule_and_no_bookkeeping_crosses(ran: Federated) -> None:
    workload = pool_workload(short())
    ROLES.check(Classification(short(), workload.task))
    sent = [name for task in ran.spy.tasks for tensors in task.slots.values() for name in tensors]
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


PICKY = {"clusters": 3, "min_share": 0.33, "restart_after": 1, "rounds": 2}
"""Three models for three clients, each to be chosen by one of them: rare by chance."""


def tries(ran: Federated) -> int:
    found = ran.state.server.metadata["restarts"]
    assert isinstance(found, int)
    return found


def there(*rounds: tuple[int, ...]) -> dict[str, Any]:
    return {"participation": ParticipationConfig(availability=rounds)}


def test_a_round_without_clients_puts_the_look_off() -> None:
    everybody = (0, 1, 2)
    ran = ran_with(short_ifca(**PICKY, max_restarts=40), **there((), everybody, everybody))
    rows = ran.spy.client_groups(ran.state.server)
    assert 1 not in rows
    assert len(set(rows[2])) < 3, "the first models did: take another seed"
    assert tries(ran) >= 1


def test_shares_are_looked_at_when_clients_choose_by_loss() -> None:
    """Five models cannot all have one of three clients."""
    picky = {**PICKY, "clusters": 5, "min_share": 0.2, "rounds": 6}
    ran = ran_with(short(**picky, explore_rounds=4, max_restarts=1))
    began = [after.metadata["began"] for *_, after in ran.spy.served]
    assert began == [0] * 4 + [5] * (1 + 6)


def metadata(choices: dict[str, list[int]], **changes: Any) -> ServerState:
    known = {"began": 0, "looked": False, "restarts": 0, "choices": choices, **changes}
    return ServerState(slots={}, round=max(map(int, choices)), metadata=known)


def test_who_took_part_earlier_counts_by_the_last_choice() -> None:
    """Two of four clients a round: the last cohort alone would have no client for model 1."""
    config = short_ifca(clusters=2, min_share=0.5, restart_after=2)
    choices = {"1": [ABSENT, 1, ABSENT, 1], "2": [0, ABSENT, 0, ABSENT]}
    assert is_due(metadata(choices), config)
    assert not has_failed(metadata(choices), config)
    assert has_failed(metadata({**choices, "3": [ABSENT, 0, ABSENT, ABSENT]}), config)
    assert not is_due(metadata(choices, looked=True), config)


def test_choices_of_an_earlier_pool_do_not_count() -> None:
    config = short_ifca(clusters=2, min_share=0.5, restart_after=1)
    choices = {"1": [1, 1], "2": [0, ABSENT], "3": [0, 1]}
    assert has_failed(metadata({k: choices[k] for k in "12"}, began=1), config)
    assert not has_failed(metadata(choices, began=1), config)


def test_a_client_that_was_away_since_the_restart_is_in_no_group() -> None:
    ran = ran_with(short_ifca(**PICKY, max_restarts=1), **there((0, 1, 2), (0, 1), (0, 1), (0, 1)))
    assert tries(ran) == 1
    server, method = ran.state.server, ran.spy
    assert set(method.members(server)) == {0, 1}
    most = favourite(method.members(server).values())
    found = method.model_for(server, 2).state_dict()
    wanted = server.slots[f"head/{most}"]["classifier.weight"]
    assert any(
        torch.equal(value, wanted) for value in found.values() if value.shape == wanted.shape
    )


def test_the_servers_optimiser_forgets_the_models_that_are_gone() -> None:
    config = short_ifca(**PICKY, max_restarts=1)
    momentum = AggregationConfig(optimizer="momentum", momentum=0.9, learning_rate=1.0)
    ran = ran_with(config, aggregation=momentum)
    assert tries(ran) == 1
    _, _, _, _, drawn = ran.spy.served[0]
    before, _, means, _, after = ran.spy.served[1]
    assert before.slots == drawn.slots
    for slot, mean in means.items():
        for name, value in mean.tensors.items():
            assert torch.equal(after.slots[slot][name], value)
    sent = [task.outcome.up for task in ran.spy.tasks if task.phase.round == 2]
    for slot in means:
        alone = [up[slot] for up in sent if slot in up]
        if len(alone) == 1:  # without moments the first step is to the mean
            for name, value in alone[0].tensors.items():
                torch.testing.assert_close(means[slot].tensors[name], value)
