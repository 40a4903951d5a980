"""Aggregation in whole runs: each rule and optimiser against its formula, resumed, refused."""

# ruff: noqa: E501 -- the sentences stand whole

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from coterie import Federation
from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.commands.compose import compose
from coterie.config.aggregation import AggregationConfig
from coterie.config.participation import ParticipationConfig
from coterie.jobs.train import main
from coterie.modules.fedmcc import FedMCC
from tests.builders.checkpoints import save
from tests.builders.federation import federate, same_bits, tiny_workload
from tests.builders.loops import make_loop, make_workload, plain, start
from tests.builders.loops import run as run_loop
from tests.builders.pool import Pool

METHOD = FedMCC.Config(
    projection=5,
    batch_size=8,
    representation_rounds=2,
    clustering_rounds=1,
    representation_epochs=1,
    clustering_epochs=1,
    learning_rate=0.01,
)


def federated(**aggregation):
    return federate(tiny_workload(METHOD, aggregation=AggregationConfig(**aggregation)))


def last_round(ran, slot="encoder"):
    """The server's slot before and after round 2, and what its three clients sent."""
    before, phase, _, _, after = ran.spy.served[1]
    sent = [t.outcome.up[slot].tensors for t in ran.spy.tasks if t.phase.round == phase.round]
    stacked = {name: torch.stack([tensors[name] for tensors in sent]).numpy() for name in sent[0]}
    return before.slots[slot], after.slots[slot], stacked


JOINED = {
    "equal": lambda sent: sent.mean(axis=0),
    "median": lambda sent: np.median(sent, axis=0),
    "trimmed_mean": lambda sent: trim_mean(sent, 0.4, axis=0),
}


@pytest.mark.parametrize("rule", list(JOINED))
def test_a_rule_joins_what_the_clients_sent(rule):
    ran = federated(rule=rule, trim=0.4)
    _, after, sent = last_round(ran)
    for name, values in sent.items():
        expected = JOINED[rule](values)
        np.testing.assert_allclose(after[name].numpy(), expected, rtol=1e-12, atol=1e-15)
        if rule == "median":
            assert np.array_equal(after[name].numpy(), expected)
    assert [mean.weight for mean in ran.spy.served[1][2].values()] == [3, 3]
    assert all(one.updates == {} for done in ran.commits for one in done.result.client_results)


def test_weighted_without_optimiser_is_the_default_to_the_bit():
    ran, default = federated(rule="weighted", optimizer="none"), federate(tiny_workload(METHOD))
    for slot, tensors in default.state.server.slots.items():
        assert same_bits(ran.state.server.slots[slot], tensors)
    assert default.spy.served[1][2]["encoder"].weight == 44
    assert default.state.stages == {}


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_an_optimiser_moves_the_server_towards_the_mean_but_for_running_statistics(optimizer):
    ran = federated(rule="equal", optimizer=optimizer, learning_rate=0.3, momentum=0.5)
    moments = ran.state.stages["optimizer/encoder"]
    before, after, sent = last_round(ran)
    for name, values in sent.items():
        mean = torch.from_numpy(values.mean(axis=0))
        if "running" in name:
            assert torch.allclose(after[name], mean, rtol=1e-12, atol=1e-15)
            continue
        direction = moments[f"m/{name}"]
        if optimizer == "adam":
            direction = direction / (moments[f"v/{name}"].sqrt() + 1e-3)
        expected = before[name] + 0.3 * direction
        assert torch.allclose(after[name], expected, rtol=1e-12, atol=1e-15)
        assert not torch.allclose(after[name], mean, rtol=1e-3, atol=1e-3)
    assert {f"optimizer/{slot}" for slot in ("encoder", "instance", "cluster")} == set(
        ran.state.stages
    )
    assert not any("running" in name for name in moments)


def test_a_client_that_sends_huge_values_does_not_move_the_median():
    ran = federated(rule="median")
    worker = ran.backend.worker
    honest = worker.method.method.client

    def faulty(client, phase, slots):
        outcome = honest(client, phase, slots)
        if client.id == 1:
            for mean in outcome.up.values():
                for value in mean.tensors.values():
                    value.fill_(1e7)
        return outcome

    worker.method.method.client = faulty
    loop = make_loop(tiny_workload(METHOD, aggregation=AggregationConfig(rule="median")))
    loop.backend = ran.backend
    state = start(loop)
    loop.run(state)
    assert (state.failures, state.server.round) == ([], 3)
    values = torch.cat([v.flatten() for s in state.server.slots.values() for v in s.values()])
    assert values.abs().max() < 100


def test_models_of_a_pool_that_nobody_sent_keep_bits_and_moments():
    config = AggregationConfig(rule="median", optimizer="adam")
    state, done = run_loop(make_workload(Pool.Config(rounds=2), [2] * 5, aggregation=config))
    assert {slot: mean.weight for slot, mean in done[0].result.means.items()} == {
        "model/0": 2,
        "model/2": 2,
        "model/3": 1,
    }
    assert torch.equal(state.server.slots["model/1"]["w"], torch.full((2,), 1 / 3))
    assert sorted(state.stages) == [f"optimizer/model/{number}" for number in (0, 2, 3)]


@pytest.mark.parametrize("phases", [1, 2])
def test_a_resumed_fedadam_run_has_the_bits_of_an_undisturbed_one(tmp_path, phases):
    workload = tiny_workload(
        METHOD,
        aggregation=AggregationConfig(rule="trimmed_mean", trim=0.34, optimizer="adam"),
        participation=ParticipationConfig(dropout_rate=0.2, straggler_rate=0.5),
    )
    undisturbed, _ = run_loop(workload)

    class Crash(BaseException):
        """The process is gone."""

    def commit(state, done):
        if state.phases == phases:
            save(tmp_path, state, loop.backend, keep=1)
            raise Crash

    loop = make_loop(workload, commit)
    with pytest.raises(Crash):
        loop.run(start(loop))
    again = make_loop(workload)
    state = load_checkpoint(tmp_path, again.backend).state
    assert {name[:2] for name in state.stages["optimizer/encoder"]} == {"m/", "v/"}
    again.run(state)
    assert plain(state) == plain(undisturbed)
    assert state.simulated == undisturbed.simulated
    for slot, moments in undisturbed.stages.items():
        assert same_bits(state.stages[slot], moments)


def test_a_run_says_what_was_simulated_and_ends_with_0(tmp_path):
    config = compose(
        "experiment=fedmcc_digits",
        "cluster=serial",
        "data.limit=100",
        "encoder=mlp",
        "encoder.hidden=[16]",
        "method.representation_rounds=3",
        "method.clustering_rounds=0",
        "method.representation_epochs=1",
        "aggregation.rule=median",
        "aggregation.optimizer=adam",
        "participation.count=4",
        "participation.dropout_rate=0.5",
        "participation.device_failure_rate=0.2",
        "participation.straggler_rate=0.5",
        "tracking.progress=none",
        "evaluation.figures=false",
        "evaluation.linear_probe=false",
        f"run_dir={tmp_path / 'run'}",
    )
    ran = Federation(config).run()
    rows = [json.loads(line) for line in (ran.run_dir / "metrics.jsonl").read_text().splitlines()]
    server = [row for row in rows if row["scope"] == "server"]
    assert [row["absent"] for row in server] == [1, 1, 1]
    assert all(row["participants"] + row["dropped"] == 4 for row in server)
    assert all(row["dropped"] == row["dropped/simulated"] for row in server)
    summary = json.loads((ran.run_dir / "summary.json").read_text())
    assert summary["simulated"] == {
        name: sum(row[name] for row in server) for name in ("dropped", "stragglers")
    }
    assert summary["simulated"]["dropped"] > 0
    assert (ran.exit_code, summary["failures"]) == (0, [])


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
def test_a_client_that_sends_values_beyond_all_bounds_has_failed(rule):
    ran = federated(rule=rule, trim=0.0)
    honest = ran.backend.worker.method.method.client

    def faulty(client, phase, slots):
        outcome = honest(client, phase, slots)
        far = {
            slot: replace(
                mean, tensors={n: t.double() * 0 + 1e300 for n, t in mean.tensors.items()}
            )
            for slot, mean in outcome.up.items()
        }
        return replace(outcome, up=far) if client.id == 1 else outcome

    ran.backend.worker.method.method.client = faulty
    loop = make_loop(tiny_workload(METHOD, aggregation=AggregationConfig(rule=rule, trim=0.0)))
    loop.backend = ran.backend
    state = start(loop)
    loop.run(state)
    assert state.failures
    assert all("client 1 failed" in failure for failure in state.failures)
    values = torch.cat([v.flatten() for s in state.server.slots.values() for v in s.values()])
    assert values.abs().max() < 100


REFUSED = [
    (
        "aggregation={rule:trimmed_mean,trim:0.19}",
        "aggregation.trim=0.19: with 5 clients it drops nobody; raise it, let more clients take part, or choose aggregation.rule=median.",
    ),
    ("aggregation.trim=0.5", "aggregation.trim=0.5: must be below 0.5."),
    ("participation.count=9", "participation.count=9: there are 5 clients; choose 1 to 5."),
    (
        "participation.availability=[[0],[7]]",
        "participation.availability: round 2 names client 7; there are 5 clients, from 0 to 4.",
    ),
    (
        "participation.availability=[0,1]",
        "participation.availability=[0,1]: give a file, or a list of lists of clients such as [[0,1],[2]].",
    ),
    ("participation.dropout_rate=1.0", "participation.dropout_rate=1.0: must be below 1."),
    (
        "participation={fraction:0.5,count:2}",
        "participation={fraction:0.5,count:2}: fraction=0.5 and count=2 exclude each other; set one.",
    ),
]


@pytest.mark.parametrize(("override", "sentence"), REFUSED)
def test_the_config_is_refused_in_one_sentence(override, sentence, capsys, tmp_path):
    arguments = ("experiment=fedmcc_digits", "cluster=serial", f"run_dir={tmp_path / 'run'}")
    assert main([*arguments, override]) == 2
    assert capsys.readouterr().err == sentence + "\n"
    assert not (tmp_path / "run").exists()
