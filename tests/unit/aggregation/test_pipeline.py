"""What stages keep between rounds, and that the method sees nothing of it."""

from coterie.config.aggregation import AggregationConfig
from coterie.execution.packing import unpack
from tests.builders.loops import make_workload, run
from tests.builders.messenger import Messenger
from tests.builders.remembering import Remembering


def test_a_stages_tensors_stay_at_the_server_and_with_each_client(monkeypatch):
    received, states = [], set()
    server, client = Messenger.server, Messenger.client
    monkeypatch.setattr(
        Messenger,
        "client",
        lambda self, one, phase, slots: (
            states.update(one.state or ()) or client(self, one, phase, slots)
        ),
    )
    monkeypatch.setattr(
        Messenger,
        "server",
        lambda self, state, phase, means, gathered: (
            received.append(set(means)) or server(self, state, phase, means, gathered)
        ),
    )
    stages = AggregationConfig(stages=(Remembering.Config(),))
    config = Messenger.Config(rounds=2, cohorts=(1.0, 1.0, (0, 1)))
    state, done = run(make_workload(config, aggregation=stages))
    assert len(done) == 4
    assert float(state.stages["remembering/rounds"]["n"]) == 4
    kept = {client: unpack(packed) for client, packed in state.states.items()}
    assert {c: float(t["aggregation/remembering/tasks"]) for c, t in kept.items()} == {
        **dict.fromkeys((0, 1), 4.0),
        2: 3.0,
    }
    assert {c: float(t["tasks"]) for c, t in kept.items()} == {0: 4.0, 1: 4.0, 2: 3.0}
    assert states == {"memory", "tasks"}
    assert received == [set(), {"total"}, set(), {"total"}]


def test_the_methods_result_is_that_without_the_stage():
    config = Messenger.Config(rounds=2)
    plain, _ = run(make_workload(config))
    stages = AggregationConfig(stages=(Remembering.Config(),))
    with_stage, _ = run(make_workload(config, aggregation=stages))
    assert with_stage.server.slots == plain.server.slots
