"""The round loop, serially: peer messages, pools of models, seeds, failures, bytes, breaches."""

import numpy as np
import pytest
import torch

from coterie.config.component import target_of
from coterie.contract.phase import Phase, ServerState
from coterie.contract.seeds import derive_seed, seeded
from coterie.errors import ContractError, RunError
from coterie.execution.packing import unpack
from tests.builders.loops import make_loop, make_workload, run, start
from tests.builders.messenger import Messenger
from tests.builders.pool import Pool


def received(committed):
    """Client to the peer messages it reported: (sender, sender's id, round, step)."""
    return {
        client: [tuple(row) for row in gathered["received"].tolist()]
        for client, gathered in committed.result.gathered.items()
    }


def test_test_methods_can_be_named_by_their_path():
    assert target_of(Messenger.Config()) == "tests.builders.messenger:Messenger"
    assert target_of(Pool.Config()) == "tests.builders.pool:Pool"


class Counting(Messenger):
    """Client 1's groups of samples cannot be counted."""

    seen = -1

    class Config(Messenger.Config):
        """As the base."""

    def client(self, client, phase, slots):
        self.seen = client.id
        return super().client(client, phase, slots)

    def group_sizes(self, sums):
        seen, self.seen = self.seen, -1
        if seen == 1:
            raise ValueError("it has no counts")
        return {slot: torch.tensor([3]) for slot in sums}


@pytest.mark.parametrize("policy", ["drop", "retry"])
def test_a_client_that_fails_at_its_very_end_is_in_no_sum(policy):
    faults = {"on_client_failure": policy}
    _, done = run(make_workload(Counting.Config(rounds=1), faults=faults))
    weights = {0: 2, 2: 4}
    assert done[-1].result.means["total"].weight == sum(weights.values())


def test_peer_messages_arrives_in_the_recipients_next_task_once():
    _, done = run(make_workload(Messenger.Config(rounds=2)))
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


def test_peer_messages_waits_until_its_recipient_runs():
    # 0 writes to 1 in phase 0; 1 runs in phase 2 only. 2 writes to 0, which runs in phase 3.
    cohorts = ((0, 2), (2,), (1, 2), (0, 1, 2))
    state, done = run(make_workload(Messenger.Config(rounds=2, cohorts=cohorts)))
    assert [received(c) for c in done] == [
        {0: [], 2: []},
        {2: []},
        {1: [(0, 0, 1, 0)], 2: []},
        # 2 has run three times since: its last peer message is the one that counts.
        {0: [(2, 2, 2, 0)], 1: [], 2: [(1, 1, 2, 0)]},
    ]
    assert sorted(state.peer_messages) == [0, 1, 2]
    assert {to: sorted(messages) for to, messages in state.peer_messages.items()} == {
        0: [2],
        1: [0],
        2: [1],
    }


def test_two_senders_are_told_apart_and_come_in_their_order():
    workload = make_workload(Messenger.Config(rounds=1, clients=1, cohorts=((2, 1), 1.0)))
    _, done = run(workload)  # with `clients=1` all peer messages goes to client 0
    assert received(done[1])[0] == [(1, 1, 1, 0), (2, 2, 1, 0)]


def test_what_a_client_keeps_is_there_in_its_next_task_alone():
    cohorts = ((0, 1), (1,), (2,), (0, 2))
    state, done = run(make_workload(Messenger.Config(rounds=2, cohorts=cohorts)))
    tasks = [{t.client: t.metrics["tasks"] for t in c.result.client_results} for c in done]
    assert tasks == [{0: 1, 1: 1}, {1: 2}, {2: 1}, {0: 2, 2: 2}]
    assert {c: unpack(kept)["tasks"].item() for c, kept in state.states.items()} == {
        0: 2,
        1: 2,
        2: 2,
    }


def test_the_whole_of_two_rounds_by_hand():
    sizes = (2, 3, 4)
    state, done = run(make_workload(Messenger.Config(rounds=2), sizes, seed=5))
    memory = np.zeros(3)
    messages, total = np.zeros(3), 0.0
    for number, step in ((1, 0), (1, 1), (2, 0), (2, 1)):
        arrived, messages = messages, np.zeros(3)
        for client in range(3):
            with seeded(derive_seed(5, "client", number, step, client)):
                noise = torch.rand(1, dtype=torch.float64).item()
            memory[client] = 0.5 * memory[client] + noise + arrived[client]
            messages[(client + 1) % 3] = client + number + step
        if step == 1:
            total += np.dot(memory, sizes) / sum(sizes)
    assert state.server.slots["total"]["value"].item() == pytest.approx(total, abs=1e-14)
    for client, kept in state.states.items():
        assert unpack(kept)["memory"].item() == pytest.approx(memory[client], abs=1e-14)
    assert done[1].result.means["total"].weight == 9
    assert (state.phases, state.server.round, state.server.step) == (4, 2, 0)


def test_a_phase_without_slots_up_averages_nothing_and_does_not_end_the_round():
    counters = []
    workload = make_workload(Messenger.Config(rounds=2))
    loop = make_loop(workload, lambda s, c: counters.append((s.server.round, s.server.step)))
    state = start(loop)
    loop.run(state)
    assert counters == [(0, 1), (1, 0), (1, 1), (2, 0)]
    _, done = run(workload)
    assert [dict(c.result.means) == {} for c in done] == [True, False, True, False]
    assert [c.traffic.up.get("total", 0) for c in done] == [0, 3 * (8 + 8), 0, 3 * (8 + 8)]


def test_records_are_gathered_in_client_order_and_of_the_cohort_alone():
    state, done = run(make_workload(Messenger.Config(rounds=1, cohorts=((2, 0), 2))))
    assert list(done[0].result.gathered) == [0, 2]
    last = list(done[1].result.gathered)
    assert len(last) == 2
    assert last == sorted(last) == state.server.metadata["last"]


@pytest.mark.parametrize(("cohort", "size"), [(1.0, 7), (0.5, 4), (0.1, 1), (3, 3), ((6, 2), 2)])
def test_cohorts_by_fraction_count_and_ids(cohort, size):
    config = Messenger.Config(rounds=1, clients=7, cohorts=(cohort, cohort))
    _, done = run(make_workload(config, [2] * 7))
    for committed in done:
        ids = [one.client for one in committed.result.client_results]
        assert len(ids) == size
        assert ids == sorted(ids)
    if isinstance(cohort, tuple):
        assert ids == [2, 6]


def seeds_of(**config):
    _, done = run(make_workload(Messenger.Config(rounds=2), **config))
    return [r["seed"].item() for c in done for r in c.result.gathered.values()]


def test_seeds_differ_between_phases_and_clients_and_are_equal_between_runs():
    seeds = seeds_of(seed=1)
    assert len(set(seeds)) == 12
    assert seeds_of(seed=1) == seeds
    assert not set(seeds_of(seed=2)) & set(seeds)


def test_two_runs_give_the_same_bits_and_another_seed_others():
    def value(seed):
        state, _ = run(make_workload(Messenger.Config(rounds=3), seed=seed))
        return state.server.slots["total"]["value"].item()

    assert value(1) == value(1) != value(2)


def test_bytes_of_peer_messages():
    state, done = run(make_workload(Messenger.Config(rounds=1)))
    assert [c.traffic.peer for c in done] == [{"message": 3 * 24}] * 2
    assert state.ledger.peer == 144


def test_each_model_of_a_pool_is_averaged_over_those_who_chose_it():
    # Clients 0…4 choose 0, 2, 0, 3, 2 and add 10 c with weight c + 1.
    sizes = (2, 2, 2, 2, 2)
    state, [done] = run(make_workload(Pool.Config(), sizes))
    slots = state.server.slots
    shift = {0: (1 * 0 + 3 * 20) / 4, 2: (2 * 10 + 5 * 40) / 7, 3: 30.0}
    for model, by in shift.items():
        expected = np.float32(model / 3) + by
        assert slots[f"model/{model}"]["w"].tolist() == pytest.approx([expected] * 2, rel=1e-6)
        assert slots[f"model/{model}"]["b"].item() == pytest.approx(-model / 7 + by, rel=1e-6)
        assert slots[f"model/{model}"]["b"].shape == ()
    assert state.server.metadata["weights"] == {"model/0": 4, "model/2": 7, "model/3": 4}
    assert {c: r["choice"].item() for c, r in done.result.gathered.items()} == {
        0: 0,
        1: 2,
        2: 0,
        3: 3,
        4: 2,
    }


def test_a_model_that_nobody_chose_keeps_its_bits():
    state, [done] = run(make_workload(Pool.Config(), [2] * 5))
    assert "model/1" not in done.result.means
    assert torch.equal(state.server.slots["model/1"]["w"], torch.full((2,), 1 / 3))
    assert torch.equal(state.server.slots["model/1"]["b"], torch.tensor(-1 / 7))


def test_only_what_was_chosen_is_sent_up_and_what_did_not_change_is_not_sent_down():
    state, done = run(make_workload(Pool.Config(rounds=2), [2] * 5))
    model = 3 * 4  # bytes: w and b
    assert done[0].traffic.down == {f"model/{m}": 5 * model for m in range(4)}
    assert done[1].traffic.down == {f"model/{m}": 5 * model for m in (0, 2, 3)}
    weighted = model + 8
    up = {"model/0": 2 * weighted, "model/2": 2 * weighted, "model/3": weighted}
    assert done[0].traffic.up == {**up, "gathered/choice": 5 * 8}
    ledger = state.ledger
    assert (ledger.down, ledger.up, ledger.peer) == (35 * model, 2 * (5 * weighted + 40), 0)


def test_a_broken_client_is_tried_again_then_dropped_and_all_of_it_is_told():
    loop = make_loop(make_workload(Pool.Config(broken=(1,)), [2] * 5))
    state = start(loop)
    loop.run(state)
    assert state.server.metadata["weights"] == {"model/0": 4, "model/2": 5, "model/3": 4}
    message = "ValueError: disk 1 is full"
    assert state.failures == [
        f"round 1, choose: client 1 failed ({message}); {remedy}"
        for remedy in ("retried", "dropped from the phase")
    ]
    assert state.dropped == 1
    calls = [call[:2] for call in loop.observer.calls if call[0].startswith("client")]
    assert calls == [
        ("client_done", 0),
        ("client_failed", 1),
        ("client_done", 2),
        ("client_done", 3),
        ("client_done", 4),
        ("client_failed", 1),
    ]


def test_a_diverged_client_leaves_nothing_in_any_sum():
    faults = {"on_client_failure": "drop"}
    state, _ = run(make_workload(Pool.Config(diverged=(4,)), [2] * 5, faults=faults))
    assert state.server.metadata["weights"] == {"model/0": 4, "model/2": 2, "model/3": 4}
    expected = np.float32(2 / 3) + 10
    assert state.server.slots["model/2"]["w"].tolist() == pytest.approx([expected] * 2, rel=1e-6)
    assert "slot 'model/2': 'w' is not finite" in state.failures[0]


def test_too_many_broken_clients_fail_the_run_before_the_server_state_changes():
    loop = make_loop(make_workload(Pool.Config(broken=(0, 1, 2)), [2] * 5))
    state = start(loop)
    before = state.server
    with pytest.raises(RunError, match="2 of 5 clients succeeded"):
        loop.run(state)
    assert state.server is before
    assert (state.phases, state.ledger.down, state.ledger.versions) == (0, 0, {})


class KeepsOddThings(Pool):
    """Client 0 wants to keep what is no tensor."""

    class Config(Pool.Config):
        """As the parent's."""

    def client(self, client, phase, slots):
        outcome = super().client(client, phase, slots)
        if client.id == 0:
            object.__setattr__(outcome, "state", {"x": "not a tensor"})
        return outcome


def test_a_state_that_cannot_be_kept_fails_its_client_and_is_not_summed():
    workload = make_workload(KeepsOddThings.Config(), [2] * 5)
    state, _ = run(workload)
    assert state.server.metadata["weights"] == {"model/0": 3, "model/2": 7, "model/3": 4}
    assert state.dropped == 1


class NamesAnotherSlot(Pool):
    """Its phase averages a slot that the server does not have."""

    class Config(Pool.Config):
        """As the parent's."""

    def next(self, server: ServerState) -> Phase | None:
        return Phase(name="p", stage="s", round=1, down=frozenset(server.slots), up=frozenset("z"))


def test_a_slot_that_the_server_lacks_is_refused_before_anything_runs():
    loop = make_loop(make_workload(NamesAnotherSlot.Config(), [2] * 5))
    with pytest.raises(ContractError, match="averages slot 'z', which the server's state lacks"):
        loop.run(start(loop))
    assert not [call for call in loop.observer.calls if call[0].startswith("client")]


class Early(Messenger):
    """It has nothing left to do after the first of its rounds."""

    class Config(Messenger.Config):
        """As the base."""

    def next(self, server):
        return None if server.round else super().next(server)


@pytest.mark.parametrize(("method", "told"), [(Early, 1), (Messenger, 0)])
def test_a_method_that_ends_before_its_last_round_is_told(method, told):
    loop, notes = make_loop(make_workload(method.Config(rounds=3))), []
    loop.observer.note = notes.append
    loop.run(start(loop))
    assert notes == told * ["The method ended after round 1 of at most 3."]
