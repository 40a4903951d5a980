"""Participation in the round loop: cohorts, absent clients, dropouts, stragglers, empty rounds."""

import json
from collections import Counter

import pytest

from coterie.commands.compose import compose
from coterie.config.participation import ParticipationConfig
from coterie.contract.client import Fit
from coterie.contract.phase import Phase
from coterie.errors import ConfigError, ContractError, RunError
from coterie.modules.fedmcc import FedMCC
from coterie.rounds.participation import Participation, choose_cohort, stragglers
from coterie.run.setup import assemble
from tests.builders.federation import tiny_workload
from tests.builders.loops import make_loop, make_workload, run, start
from tests.builders.messenger import Messenger
from tests.builders.pool import Pool


def turnouts(rounds=6, cohort=1.0, clients=10, seed=0, **keys):
    """Each round's turnout."""
    workload = make_workload(
        Pool.Config(), [2] * clients, seed=seed, participation=ParticipationConfig(**keys)
    )
    participation = Participation(workload.config, clients)
    phases = [Phase(name="p", stage="s", round=r, cohort=cohort) for r in range(1, rounds + 1)]
    return [participation.turnout(phase) for phase in phases]


def sizes(found):
    return [len(turnout.clients) for turnout in found]


@pytest.mark.parametrize("cohort", [1.0, 0.2, 7])
def test_fraction_and_count_replace_the_methods_size(cohort):
    assert sizes(turnouts(cohort=cohort, fraction=0.31)) == [4] * 6
    assert sizes(turnouts(cohort=cohort, count=3)) == [3] * 6
    assert len({turnout.clients for turnout in turnouts(cohort=cohort, count=3)}) > 1


def test_ids_that_the_method_names_are_never_replaced():
    found = turnouts(cohort=(8, 1), count=5, fraction=None)
    assert [turnout.clients for turnout in found] == [(1, 8)] * 6


def test_availability_begins_anew_after_its_last_round():
    found = turnouts(availability=((0, 1, 2), (), (9,)), count=2)
    assert sizes(found) == [2, 0, 1, 2, 0, 1]
    assert set(found[0].clients) < {0, 1, 2}
    assert found[2].clients == (9,)
    assert [turnout.simulated for turnout in found[:3]] == [{"absent": n} for n in (7, 10, 9)]


def test_a_fraction_is_of_those_present():
    present = tuple(range(6))
    assert sizes(turnouts(availability=(present,), fraction=0.5)) == [3] * 6
    assert sizes(turnouts(availability=(present,), cohort=0.5)) == [3] * 6


def test_failed_devices_are_absent_in_every_round():
    found = turnouts(device_failure_rate=0.3)
    assert sizes(found) == [7] * 6
    assert len({turnout.clients for turnout in found}) == 1
    assert found[0].simulated == {"absent": 3}
    assert turnouts(device_failure_rate=0.3, seed=1)[0].clients != found[0].clients


def test_dropouts_take_no_task_and_stragglers_a_short_one():
    found = turnouts(rounds=200, dropout_rate=0.25, straggler_rate=0.5, straggler_work=0.1)
    gone = [turnout.simulated["dropped"] for turnout in found]
    assert sizes(found) == [10 - n for n in gone]
    assert abs(sum(gone) - 500) < 97  # Binomial(2000, 0.25): five standard deviations
    for turnout in found:
        assert set(turnout.work) <= set(turnout.clients)
        assert set(turnout.work.values()) <= {0.1}
        assert len(turnout.work) == turnout.simulated["stragglers"]
        assert len(turnout.work) in (len(turnout.clients) // 2, (len(turnout.clients) + 1) // 2)


def test_nothing_is_simulated_unless_it_is_configured():
    assert all(not turnout.simulated and not turnout.work for turnout in turnouts())


def test_simulated_dropouts_are_no_failures_and_only_participants_are_counted():
    keys = ParticipationConfig(dropout_rate=0.6)
    workload = make_workload(Pool.Config(rounds=5), [2] * 5, participation=keys)
    state, done = run(workload)
    assert (state.failures, state.dropped) == ([], 0)
    assert state.simulated == {"dropped": sum(c.simulated["dropped"] for c in done)}
    took_part = [[one.client for one in c.result.client_results] for c in done]
    assert [5 - len(clients) for clients in took_part] == [c.simulated["dropped"] for c in done]
    assert len(took_part[0]) < 5
    assert sorted(state.ledger.versions) == sorted({c for clients in took_part for c in clients})
    gathered = [c.traffic.up.get("gathered/choice", 0) for c in done]
    assert gathered == [8 * len(clients) for clients in took_part]


def test_a_phase_without_participants_passes_and_changes_nothing():
    keys = ParticipationConfig(availability=((0, 1), (), (2,)))
    loop = make_loop(make_workload(Pool.Config(rounds=3), [2] * 5, participation=keys))
    seen = []
    loop.commit = lambda state, done: seen.append((state.server, done))
    loop.run(start(loop))
    (first, _), (second, empty), (third, _) = seen
    assert [server.round for server, _ in seen] == [1, 2, 3]
    assert second.slots == first.slots
    assert second.metadata == first.metadata
    assert (empty.result.client_results, empty.result.failures, empty.traffic.up) == ((), (), {})
    assert third.metadata["weights"] == {"model/0": 3}  # client 2 chose model 0
    notes = [call[1] for call in loop.observer.calls if call[0] == "note"]
    assert notes == ["Round 2: no client took part in 'choose'."]


def test_peer_messages_waits_for_an_absent_client():
    keys = ParticipationConfig(availability=((0, 1), (1, 2)))
    state, done = run(make_workload(Messenger.Config(rounds=2), participation=keys))
    received = [{c: r["received"].tolist() for c, r in d.result.gathered.items()} for d in done]
    assert list(received[1]) == [0, 1]
    assert [row[0] for row in received[2][2]] == [1]  # client 1 wrote to 2 in round 1
    assert 0 in state.peer_messages  # client 2 wrote to 0 in round 2, where it is absent


class Counted:
    """The real trainer, whose fits are remembered."""

    def __init__(self, trainer):
        self.trainer, self.steps = trainer, []

    def fit(self, module, batches, seed) -> Fit:
        done = self.trainer.fit(module, batches, seed)
        self.steps.append(done.steps)
        return done


@pytest.mark.parametrize("executor", ["bare", "lightning"])
def test_stragglers_do_their_part_of_the_steps_in_any_method(executor):
    method = FedMCC.Config(
        projection=5,
        batch_size=4,
        representation_rounds=1,
        clustering_rounds=0,
        representation_epochs=3,
    )

    def steps(**keys):
        config = ParticipationConfig(**keys)
        loop = make_loop(tiny_workload(method, participation=config, executor=executor))
        loop.backend.worker.trainer = counted = Counted(loop.backend.worker.trainer)
        loop.run(start(loop))
        return counted.steps

    assert steps() == [9, 18, 6]  # 13, 22 and 9 samples: 3, 6 and 2 batches; one alone is skipped
    assert steps(straggler_rate=0.99, straggler_work=0.5) == [4, 9, 3]
    assert steps(straggler_rate=0.99, straggler_work=0.01) == [1, 1, 1]
    some = steps(straggler_rate=0.34, straggler_work=0.5)
    assert sum(a != b for a, b in zip(some, [9, 18, 6], strict=True)) == 1


def test_inline_lists_and_files_are_one(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([[0, 1], [2]]))
    listed = turnouts(availability=((0, 1), (2,)))
    assert turnouts(availability=str(tmp_path / "a.json")) == listed
    assert sizes(listed) == [2, 1] * 3


def test_a_run_that_nobody_took_part_in_is_no_run():
    keys = ParticipationConfig(dropout_rate=0.999)
    workload = make_workload(Pool.Config(rounds=2), [2] * 3, participation=keys)
    with pytest.raises(RunError, match=r"^No client took part in any of the 2 phases: none was"):
        run(workload)


@pytest.mark.parametrize(
    "keys", [{"availability": ((), ())}, {"availability": ((4,), ()), "seed": 3}]
)
def test_a_run_without_anybody_present_is_refused(keys):
    rate = {"device_failure_rate": 0.9} if "seed" in keys else {}
    with pytest.raises(ConfigError, match=r"no client is present in any round"):
        turnouts(**keys, **rate)


def test_a_client_that_the_method_names_has_to_be_there_in_some_round():
    def built(alone):
        rounds = "participation.availability=[[0,1],[3]]"
        short = ("experiment=ccfc_digits", "cluster=serial", "data.limit=200", rounds)
        return assemble(compose(*short, f"method.alone={alone}"))

    assert built(3).method.next(built(3).server).cohort == (3,)
    with pytest.raises(ConfigError) as refusal:
        built(2)
    assert str(refusal.value) == (
        "participation: client 2, which the method asks for, is absent in all rounds; ask for "
        "another, or change participation."
    )


def phase(cohort, number=1, step=0):
    return Phase(name="p", stage="s", round=number, step=step, cohort=cohort)


@pytest.mark.parametrize(
    ("fraction", "clients", "count"),
    [
        (1.0, 5, 5),
        (0.5, 5, 3),
        (0.2, 5, 1),
        (0.01, 5, 1),
        (0.07, 100, 7),
        (0.55, 100, 55),
        (0.29, 100, 29),
        (0.071, 100, 8),
        (1 / 3, 9, 3),
    ],
)
def test_a_fraction_is_rounded_up_as_a_decimal(fraction, clients, count):
    assert len(choose_cohort(phase(fraction), range(clients), 0)) == count


def test_one_is_a_count_and_one_point_oh_is_everybody():
    assert len(choose_cohort(phase(1), range(9), 0)) == 1
    assert choose_cohort(phase(1.0), range(9), 0) == tuple(range(9))


def test_ids_are_taken_as_they_are_once_each_and_sorted():
    assert choose_cohort(phase((4, 1, 4, 0)), range(5), 0) == (0, 1, 4)


def test_a_draw_is_sorted_without_repetition_and_depends_on_seed_and_round():
    draws = {
        (seed, number): choose_cohort(phase(10, number), range(100), seed)
        for seed in (0, 1)
        for number in (1, 2)
    }
    for (seed, number), chosen in draws.items():
        assert list(chosen) == sorted(set(chosen))
        assert all(type(client) is int for client in chosen)
        assert choose_cohort(phase(10, number), range(100), seed) == chosen
    assert len(set(draws.values())) == 4


def test_who_is_called_to_one_phase_of_a_round_is_called_to_the_others():
    for number in range(1, 20):
        first, *later = (choose_cohort(phase(0.5, number, step), range(9), 0) for step in range(4))
        assert later == [first] * 3
        slow, *others = (
            stragglers(range(9), 0.3, 0, phase(1.0, number, step)) for step in range(4)
        )
        assert others == [slow] * 3


def test_over_many_rounds_every_client_is_drawn_as_often():
    counts = Counter(
        client for number in range(1000) for client in choose_cohort(phase(3, number), range(10), 0)
    )
    # Binomial(1000, 0.3): 300 ± 14.5; five standard deviations.
    assert set(counts) == set(range(10))
    assert all(abs(count - 300) < 73 for count in counts.values())


@pytest.mark.parametrize(
    ("cohort", "sentence"),
    [
        ((1, 5), "cohort names client 5; there are 5 clients."),
        ((), "Phase 'p' has an empty cohort; name one client or more."),
        (0, "cohort=0: 0 of 5 clients; choose one or more."),
        (6, "cohort=6: 6 of 5 clients; choose one or more."),
        (0.0, "cohort=0.0: 0 of 5 clients; choose one or more."),
        (1.5, "cohort=1.5: 8 of 5 clients; choose one or more."),
    ],
)
def test_an_impossible_cohort_is_refused(cohort, sentence):
    with pytest.raises(ContractError) as caught:
        choose_cohort(phase(cohort), range(5), 0)
    assert str(caught.value) == sentence
