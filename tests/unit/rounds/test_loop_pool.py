"""The round loop with a pool of models: one sum for each, failures, contract breaches."""

import numpy as np
import pytest
import torch

from coterie.contract.phase import Phase, ServerState
from coterie.errors import ContractError, RunError
from tests.methods_for_tests.pool import Pool
from tests.methods_for_tests.running import make_loop, make_workload, run, start


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
    assert state.server.facts["weights"] == {"model/0": 4, "model/2": 7, "model/3": 4}
    assert {c: r["choice"].item() for c, r in done.result.records.items()} == {
        0: 0, 1: 2, 2: 0, 3: 3, 4: 2,
    }  # fmt: skip


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
    assert done[0].traffic.up == {**up, "records/choice": 5 * 8}
    ledger = state.ledger
    assert (ledger.down, ledger.up, ledger.peer) == (35 * model, 2 * (5 * weighted + 40), 0)


def test_a_broken_client_is_tried_again_then_dropped_and_all_of_it_is_told():
    loop = make_loop(make_workload(Pool.Config(broken=(1,)), [2] * 5))
    state = start(loop)
    loop.run(state)
    assert state.server.facts["weights"] == {"model/0": 4, "model/2": 5, "model/3": 4}
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
    assert state.server.facts["weights"] == {"model/0": 4, "model/2": 2, "model/3": 4}
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
    assert state.server.facts["weights"] == {"model/0": 3, "model/2": 7, "model/3": 4}
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
