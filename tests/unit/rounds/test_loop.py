"""The round loop on the serial backend: mail, pools of models, cohorts, seeds, failures, bytes."""

import numpy as np
import pytest
import torch

from coterie.config.component import target_of
from coterie.contract.seeds import derive_seed, seeded
from coterie.execution.packing import unpack
from tests.methods_for_tests.mailer import Mailer
from tests.methods_for_tests.pool import Pool
from tests.methods_for_tests.running import make_loop, make_workload, run, start


def received(committed):
    """Client to the letters it reported: (sender, sender's id, round, step)."""
    return {
        client: [tuple(row) for row in records["received"].tolist()]
        for client, records in committed.result.records.items()
    }


def test_test_methods_can_be_named_by_their_path():
    assert target_of(Mailer.Config()) == "tests.methods_for_tests.mailer:Mailer"
    assert target_of(Pool.Config()) == "tests.methods_for_tests.pool:Pool"


def test_mail_arrives_in_the_recipients_next_turn_once():
    _, done = run(make_workload(Mailer.Config(rounds=2)))
    assert [(c.phase.round, c.phase.step, c.phase.name) for c in done] == [
        (1, 0, "talk"),
        (1, 1, "sum"),
        (2, 0, "talk"),
        (2, 1, "sum"),
    ]
    before = {0: 2, 1: 0, 2: 1}
    assert received(done[0]) == {0: [], 1: [], 2: []}
    assert received(done[1]) == {c: [(s, s, 1, 0)] for c, s in before.items()}
    assert received(done[2]) == {c: [(s, s, 1, 1)] for c, s in before.items()}
    assert received(done[3]) == {c: [(s, s, 2, 0)] for c, s in before.items()}


def test_mail_waits_until_its_recipient_runs():
    # 0 writes to 1 in phase 0; 1 runs in phase 2 only. 2 writes to 0, which runs in phase 3.
    cohorts = ((0, 2), (2,), (1, 2), (0, 1, 2))
    state, done = run(make_workload(Mailer.Config(rounds=2, cohorts=cohorts)))
    assert [received(c) for c in done] == [
        {0: [], 2: []},
        {2: []},
        {1: [(0, 0, 1, 0)], 2: []},
        # 2 has run three times since: its last letter is the one that counts.
        {0: [(2, 2, 2, 0)], 1: [], 2: [(1, 1, 2, 0)]},
    ]
    assert sorted(state.mail) == [0, 1, 2]
    assert {to: sorted(letters) for to, letters in state.mail.items()} == {0: [2], 1: [0], 2: [1]}


def test_two_senders_are_told_apart_and_come_in_their_order():
    workload = make_workload(Mailer.Config(rounds=1, clients=1, cohorts=((2, 1), 1.0)))
    _, done = run(workload)  # with `clients=1` all mail goes to client 0
    assert received(done[1])[0] == [(1, 1, 1, 0), (2, 2, 1, 0)]


def test_what_a_client_keeps_is_there_in_its_next_turn_alone():
    cohorts = ((0, 1), (1,), (2,), (0, 2))
    state, done = run(make_workload(Mailer.Config(rounds=2, cohorts=cohorts)))
    turns = [{t.client: t.metrics["turns"] for t in c.result.turns} for c in done]
    assert turns == [{0: 1, 1: 1}, {1: 2}, {2: 1}, {0: 2, 2: 2}]
    assert {c: unpack(kept)["turns"].item() for c, kept in state.states.items()} == {
        0: 2,
        1: 2,
        2: 2,
    }


def test_the_whole_of_two_rounds_by_hand():
    sizes = (2, 3, 4)
    state, done = run(make_workload(Mailer.Config(rounds=2), sizes, seed=5))
    memory = np.zeros(3)
    letters, total = np.zeros(3), 0.0
    for number, step in ((1, 0), (1, 1), (2, 0), (2, 1)):
        arrived, letters = letters, np.zeros(3)
        for client in range(3):
            with seeded(derive_seed(5, "client", number, step, client)):
                noise = torch.rand(1, dtype=torch.float64).item()
            memory[client] = 0.5 * memory[client] + noise + arrived[client]
            letters[(client + 1) % 3] = client + number + step
        if step == 1:
            total += np.dot(memory, sizes) / sum(sizes)
    assert state.server.slots["total"]["value"].item() == pytest.approx(total, abs=1e-14)
    for client, kept in state.states.items():
        assert unpack(kept)["memory"].item() == pytest.approx(memory[client], abs=1e-14)
    assert done[1].result.means["total"].weight == 9
    assert (state.phases, state.server.round, state.server.step) == (4, 2, 0)


def test_a_phase_without_slots_up_averages_nothing_and_does_not_end_the_round():
    counters = []
    workload = make_workload(Mailer.Config(rounds=2))
    loop = make_loop(workload, lambda s, c: counters.append((s.server.round, s.server.step)))
    state = start(loop)
    loop.run(state)
    assert counters == [(0, 1), (1, 0), (1, 1), (2, 0)]
    _, done = run(workload)
    assert [dict(c.result.means) == {} for c in done] == [True, False, True, False]
    assert [c.traffic.up.get("total", 0) for c in done] == [0, 3 * (8 + 8), 0, 3 * (8 + 8)]


def test_records_are_gathered_in_client_order_and_of_the_cohort_alone():
    state, done = run(make_workload(Mailer.Config(rounds=1, cohorts=((2, 0), 2))))
    assert list(done[0].result.records) == [0, 2]
    last = list(done[1].result.records)
    assert len(last) == 2
    assert last == sorted(last) == state.server.facts["last"]


@pytest.mark.parametrize(("cohort", "size"), [(1.0, 7), (0.5, 4), (0.1, 1), (3, 3), ((6, 2), 2)])
def test_cohorts_by_fraction_count_and_ids(cohort, size):
    config = Mailer.Config(rounds=1, clients=7, cohorts=(cohort, cohort))
    _, done = run(make_workload(config, [2] * 7))
    for committed in done:
        ids = [turn.client for turn in committed.result.turns]
        assert len(ids) == size
        assert ids == sorted(ids)
    if isinstance(cohort, tuple):
        assert ids == [2, 6]


def seeds_of(**config):
    _, done = run(make_workload(Mailer.Config(rounds=2), **config))
    return [r["seed"].item() for c in done for r in c.result.records.values()]


def test_seeds_differ_between_phases_and_clients_and_are_equal_between_runs():
    seeds = seeds_of(seed=1)
    assert len(set(seeds)) == 12
    assert seeds_of(seed=1) == seeds
    assert not set(seeds_of(seed=2)) & set(seeds)


def test_two_runs_give_the_same_bits_and_another_seed_others():
    def value(seed):
        state, _ = run(make_workload(Mailer.Config(rounds=3), seed=seed))
        return state.server.slots["total"]["value"].item()

    assert value(1) == value(1) != value(2)


def test_bytes_of_mail():
    state, done = run(make_workload(Mailer.Config(rounds=1)))
    assert [c.traffic.peer for c in done] == [{"letter": 3 * 24}] * 2
    assert state.ledger.peer == 144
