"""Failure policy where sums are masked: who runs again, who is dropped, what is refused."""

from dataclasses import dataclass, field, replace

import pytest
import torch

from coterie.aggregation.masking import Masking
from coterie.aggregation.pipeline import Pipeline
from coterie.aggregation.stage import Contribution, Late, Sent, StageTask
from coterie.config.schema import FaultsConfig
from coterie.contract.phase import Outcome, WeightedUpdate
from coterie.errors import ContractError, RunError
from coterie.execution.events import CallDone, ClientResult, ClientTask
from coterie.execution.packing import pack
from coterie.rounds.gather import run_phase
from tests.builders.masked import LAYOUTS, REQUEST, contribution, phase_run, unmasked

GIVEN = {client: contribution([client + 0.1] * 8, client + 1) for client in range(5)}


def request(clients=5):
    return replace(
        REQUEST, tasks=tuple(ClientTask(client=c, size=2, seed=c) for c in range(clients))
    )


@dataclass
class Backend:
    """Runs each task in a call of its own; `dies` lists (step, client), each of which dies once.

    `hangs` lists those that are ended because they take too long. With `together` all tasks of an
    request are one call, which goes by its first client.
    """

    dies: list = field(default_factory=list)
    hangs: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    stage: Masking = field(default_factory=lambda: Masking(object()))
    clients: dict = field(default_factory=dict)
    together: bool = False

    def execute(self, request):
        self.requests.append(tuple(task.client for task in request.tasks))
        for tasks in [request.tasks] if self.together else [(task,) for task in request.tasks]:
            call = len(self.clients)
            self.clients[call] = tasks[0].client
            masked = self.stage.sums(request.key, call, request.layouts, True)
            for task in tasks:
                masked.add(task.client, GIVEN[task.client])
                yield ClientResult(
                    call=call,
                    client=task.client,
                    gathered=pack({}),
                    metrics={},
                    bytes_up={},
                    bytes_peer={},
                    seconds=0.0,
                )
            yield CallDone(call=call, sums={})

    def exchange(self, stage, step, messages):
        answers = {}
        for call, message in messages.items():
            if (step, self.clients[call]) in self.dies:
                self.dies.remove((step, self.clients[call]))
            elif (step, self.clients[call]) in self.hangs:
                self.hangs.remove((step, self.clients[call]))
                answers[call] = Late("took too long")
            else:
                answers[call] = self.stage.answer(call, step, message)
        return answers


def gather(*dies, clients=5, hangs=(), together=False, **faults):
    backend = Backend(list(dies), list(hangs), together=together)
    return masked(backend, clients, FaultsConfig(**faults)), backend


def masked(backend, clients, faults):
    """Run a phase of these clients under masks."""
    run, pipeline = phase_run(clients=range(clients)), Pipeline((backend.stage,))
    asked = backend.stage.request(run)
    assert asked is True
    return run_phase(backend, request(clients), run, pipeline, faults, watch=lambda event: None)


def found(result):
    flat = {slot: LAYOUTS[slot].flatten(mean.tensors) for slot, mean in result.means.items()}
    return {slot: (mean.weight, flat[slot].tolist()) for slot, mean in result.means.items()}


def means(*clients):
    """The expected means, as the slots' dtypes hold them."""
    sums = unmasked(GIVEN[client] for client in clients)
    restored = {slot: LAYOUTS[slot].restore(sums[slot].mean()) for slot in sums}
    return {
        slot: (sums[slot].weight, LAYOUTS[slot].flatten(restored[slot]).tolist()) for slot in sums
    }


def test_all_is_well():
    result, backend = gather()
    assert found(result) == means(*range(5))
    assert backend.requests == [(0, 1, 2, 3, 4)]
    assert (result.failures, result.dropped) == ((), ())


@pytest.mark.parametrize("step", ["advertise", "share", "mask"])
@pytest.mark.parametrize("policy", ["retry", "drop", "fail"])
def test_a_client_whose_masked_sum_is_lost_runs_again(step, policy):
    result, backend = gather((step, 3), on_client_failure=policy)
    assert found(result) == means(*range(5))
    assert backend.requests == [(0, 1, 2, 3, 4), (3,)]
    assert [str(failure) for failure in result.failures] == [
        "round 3, train: an actor failed (its process was lost with its masked sum); replaced, "
        "its clients run again"
    ]


def test_a_client_that_is_lost_after_its_masked_sum_arrived_counts():
    result, backend = gather(("reveal", 3), ("reveal", 0))
    assert found(result) == means(*range(5))
    assert backend.requests == [(0, 1, 2, 3, 4)]
    assert result.dropped == ()


@pytest.mark.parametrize("step", ["advertise", "share", "mask"])
def test_a_client_that_is_lost_three_times_is_dropped_and_the_masks_of_the_others_cancel(step):
    result, backend = gather(("share", 3), ("mask", 3), (step, 3))
    assert found(result) == means(0, 1, 2, 4)
    assert result.dropped == (3,)
    assert backend.requests == [(0, 1, 2, 3, 4), (3,), (3,)]
    assert [done.client for done in result.client_results] == [0, 1, 2, 4]
    assert str(result.failures[-1]) == (
        "round 3, train: client 3 failed (its process was lost with its masked sum); dropped from "
        "the phase"
    )


def test_fail_ends_the_run_with_a_client_that_is_lost_three_times():
    with pytest.raises(RunError, match=r"Client 3 failed in round 3 \(its process was lost"):
        gather(*[("mask", 3)] * 3, on_client_failure="fail")


def test_fewer_than_it_takes_to_unmask_are_refused():
    with pytest.raises(RunError) as caught:
        gather(*(("reveal", client) for client in range(3)))
    assert str(caught.value) == (
        "Round 3: 2 of 5 clients are left, and privacy.secure_aggregation needs 3 to unmask their "
        "sum; correct what fails, or let more clients take part, and go on with resume=true."
    )


def by_rank(run):
    """Each client's largest weight in `GIVEN`."""
    return {client: client + 2 for client in run.sizes}


def test_a_masked_sum_of_more_weight_than_its_clients_samples_is_refused():
    honest, lying = (
        Backend([], stage=Masking(object(), weights))
        for weights in (by_rank, lambda run: {**by_rank(run), 4: 5})
    )
    assert found(masked(honest, 5, FaultsConfig())) == means(*range(5))
    says = r"has weight 20, but the samples of its 5 clients allow at most 19: a client has sent"
    with pytest.raises(RunError, match=says):
        masked(lying, 5, FaultsConfig())


def test_the_weight_of_a_client_that_was_dropped_is_nobodys():
    backend = Backend([("mask", 4)] * 3, stage=Masking(object(), by_rank))
    assert found(masked(backend, 5, FaultsConfig())) == means(*range(4))
    lying = Backend([("mask", 4)] * 3, stage=Masking(object(), lambda run: {**by_rank(run), 3: 4}))
    with pytest.raises(
        RunError, match="has weight 14, but the samples of its 4 clients allow at most 13"
    ):
        masked(lying, 5, FaultsConfig())


def test_a_client_sends_all_slots_or_fails():
    stage, run = Masking(object()), phase_run(clients=range(3))
    task = StageTask(
        phase=run.phase, client=1, samples=2, seed=0, received={}, layouts=LAYOUTS, phase_data=True
    )
    whole = contribution([0.5] * 8, 2)
    passed = stage.contribute(Contribution(outcome=Outcome(up=whole), up=whole), task)
    assert passed.bytes_up.keys() == LAYOUTS.keys()
    part = contribution([0.5] * 8, 2, both=False)
    with pytest.raises(
        ContractError, match=r"Slot 'b' is not sent: .* each client sends all slots"
    ):
        stage.contribute(Contribution(outcome=Outcome(up=part), up=part), task)
    unmasked_task = replace(task, phase_data=None)
    sent = Contribution(outcome=Outcome(up=part), up=part)
    assert stage.contribute(sent, unmasked_task) is sent


def test_one_client_alone_is_refused_before_it_runs():
    backend = Backend()
    with pytest.raises(RunError, match="1 of 1 clients are left"):
        masked(backend, 1, FaultsConfig())
    assert backend.requests == []


def test_keys_and_shares_are_counted():
    result, _ = gather()
    for done in result.client_results:  # 64 of keys, 4 sealed pairs of shares with tags, 5 shares
        assert done.bytes_up == {"secure_aggregation": 64 + 4 * (132 + 16) + 5 * 66}
        assert done.bytes_down == {"secure_aggregation": 5 * 64 + 4 * (132 + 16)}


@pytest.mark.parametrize("step", ["advertise", "share", "mask"])
def test_a_client_that_hangs_in_a_step_is_retried_then_dropped(step):
    result, backend = gather(hangs=[(step, 3)] * 3)
    assert found(result) == means(0, 1, 2, 4)
    assert (result.dropped, backend.hangs) == ((3,), [(step, 3)])
    assert backend.requests == [(0, 1, 2, 3, 4), (3,)]
    assert [str(failure) for failure in result.failures] == [
        "round 3, train: client 3 failed (took too long); retried",
        "round 3, train: client 3 failed (took too long); dropped from the phase",
    ]
    result, _ = gather(hangs=[(step, 3)])
    assert found(result) == means(*range(5))
    assert result.dropped == ()


def test_nobody_is_blamed_for_a_call_of_several_clients_that_hangs():
    result, _ = gather(hangs=[("share", 0)], together=True, clients=3)
    assert found(result) == means(0, 1, 2)
    assert [str(failure) for failure in result.failures] == [
        "round 3, train: an actor failed (its process was lost with its masked sum); replaced, its "
        "clients run again"
    ]


def test_without_a_retry_a_client_that_hangs_in_a_step_is_dropped_at_once_or_ends_the_run():
    result, backend = gather(hangs=[("share", 3)], on_client_failure="drop")
    assert found(result) == means(0, 1, 2, 4)
    assert (result.dropped, backend.requests) == ((3,), [(0, 1, 2, 3, 4)])
    with pytest.raises(RunError, match=r"Client 3 failed in round 3 \(took too long\)"):
        gather(hangs=[("share", 3)], on_client_failure="fail")


def test_a_client_that_hangs_after_its_masked_sum_arrived_counts():
    result, _ = gather(hangs=[("reveal", 3)])
    assert found(result) == means(*range(5))
    assert (result.failures, result.dropped) == ((), ())


class GroupSums:
    """A method whose slot "a" counts samples in groups."""

    def group_sizes(self, sums):
        return {"a": sums["a"]["x"]}


def row(kind, **more):
    given = {"key": "a", "spec": "", "clients": 3, "bytes": 9, "samples": 4, "total": 40}
    return Sent(type=kind, **{**given, **more})


def test_the_audit_says_that_the_server_has_read_the_sum_alone():
    means = {"a": WeightedUpdate(weight=3, tensors={"x": torch.tensor([5.0, 2.0, 0.0])})}
    rows = [row("slot"), row("slot", key="b"), row("keys"), row("slot", samples=None)]
    stage = Masking(GroupSums())
    found = stage.audit(rows, phase_run(), means)
    assert [(each.samples, each.summed) for each in found] == [(6, 3), (40, 3), (4, 0), (None, 3)]
    assert found[2].spec == "public keys, sealed shares"
    assert stage.audit(rows, replace(phase_run(), data={}), means) == rows
