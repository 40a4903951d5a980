"""The contract of methods, for every class with a nested `Config` in every file of `modules/`.

Each is run to its end on a tiny federation, run again, and resumed after a crash.
"""

import inspect
import re
from typing import Any

import pytest
import torch
from lightning import LightningModule
from pydantic import ValidationError

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.config.component import Component, config_model, target_of
from coterie.contract import Method, ServerState
from coterie.contract.clusterer import Clusterer
from coterie.errors import ConfigError
from coterie.execution.packing import digest, pack
from coterie.execution.serial import SerialBackend
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from tests.builders.checkpoints import save
from tests.builders.every_method import METHODS, short
from tests.builders.federation import SIZES, Federated, federate, tiny_task, tiny_workload
from tests.builders.layouts import layout, without_values
from tests.builders.loops import plain
from tests.builders.observers import Silent

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module", params=METHODS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def ran(kind: Any) -> Federated:
    return federate(workload(kind))


def workload(kind: Any, **run: Any) -> Any:
    return tiny_workload(short(kind), needs_labels=kind.needs_labels, **run)


def bits(state: ServerState) -> dict[str, Any]:
    slots = {name: digest(pack(tensors)) for name, tensors in state.slots.items()}
    return {"slots": slots, "at": (state.round, state.step), "metadata": dict(state.metadata)}


def test_the_known_methods_are_found() -> None:
    known = {
        "FedMCC",
        "MCC",
        "CC",
        "FedCC",
        "FedAvg",
        "SimCLR",
        "FedBYOL",
        "FedSimSiam",
        "CCFC",
        "SCFC",
        "KFED",
        "FFCM",
        "Orchestra",
        "CPCFL",
        "IFCA",
        "CFCL",
    }
    assert known <= {kind.__name__ for kind in METHODS}


def test_the_config_is_a_frozen_component_that_names_its_method(kind: Any) -> None:
    config = kind.Config()
    assert isinstance(config, Component)
    assert kind.Config.model_config["frozen"] is True
    assert kind.Config.model_config["extra"] == "forbid"
    with pytest.raises(ValidationError):
        setattr(config, next(iter(kind.Config.model_fields)), 1)
    with pytest.raises(ConfigError):
        kind.Config(no_such_key=1)
    assert config_model(target_of(config)) is kind.Config
    assert "target" not in kind.Config.model_fields, "in YAML that key names the class"
    assert not [n for n, field in kind.Config.model_fields.items() if not field.description]


def test_it_has_all_that_the_contract_asks_for(kind: Any) -> None:
    method = kind(kind.Config(), tiny_task())
    assert type(kind.needs_labels) is bool
    assert type(method.rounds) is int
    assert method.rounds >= 1
    for name in ("init", "next", "offer", "client", "server", "model_for"):
        wanted = list(inspect.signature(getattr(Method, name)).parameters)[1:]
        assert list(inspect.signature(getattr(method, name)).parameters) == wanted, name


def test_docstrings_name_the_paper(kind: Any) -> None:
    module = inspect.getmodule(kind)
    assert kind.__doc__
    assert re.search(r'[A-Z]\w+ (et al\.|and [A-Z]\w+), "[^"]{10,}"', module.__doc__ or "")


def test_init_is_a_function_of_its_seed(kind: Any) -> None:
    sizes = dict(enumerate(SIZES))
    method = kind(short(kind), tiny_task())
    start = method.init(sizes, 3)
    torch.rand(7)
    assert bits(method.init(sizes, 3)) == bits(start)
    assert bits(method.init(sizes, 4)) != bits(start)
    assert (start.round, start.step) == (0, 0)


def test_it_ends_after_its_rounds(ran: Federated) -> None:
    last = ran.state.server.round
    # Concord ends as soon as its own labels have settled.
    assert last <= ran.spy.rounds if ran.spy.rounds > 30 else last == ran.spy.rounds
    assert ran.spy.next(ran.state.server) is None
    ended = [phase.round for _, phase, *_ in ran.spy.served if phase.ends_round]
    assert ended == list(range(1, last + 1))
    for earlier, later in zip(ran.spy.served, ran.spy.served[1:], strict=False):
        same_round = not earlier[1].ends_round
        assert later[1].round == earlier[1].round + (not same_round)
        assert later[1].step == (earlier[1].step + 1 if same_round else 0)


def test_next_offer_and_the_server_half_are_pure(ran: Federated) -> None:
    fresh = type(ran.spy.method)(ran.config, tiny_task())
    for server, phase, means, gathered, after in ran.spy.served:
        before, expected = bits(server), bits(after)
        torch.manual_seed(0)
        generator = torch.get_rng_state()
        for method in (ran.spy.method, fresh):
            assert method.next(server) == phase
            offered = method.offer(server, phase)
            again = method.offer(server, phase)
            assert {n: digest(pack(t)) for n, t in offered.items()} == {
                n: digest(pack(t)) for n, t in again.items()
            }
            assert bits(method.server(server, phase, means, gathered)) == expected
        assert bits(server) == before
        assert torch.equal(torch.get_rng_state(), generator), "it drew from the global generator"


def test_a_saved_model_is_built_from_shapes_alone(ran: Federated) -> None:
    for *_, server in ran.spy.served:
        model = ran.spy.model_for(server, None)
        assert layout(ran.spy.model_for(without_values(server), None)) == layout(model)


def test_it_offers_just_what_the_phase_declares(ran: Federated) -> None:
    for server, phase, *_ in ran.spy.served:
        assert set(ran.spy.offer(server, phase)) == phase.down
        assert phase.up <= set(server.slots)
    for task in ran.spy.tasks:
        assert set(task.slots) == task.phase.down
        assert set(task.outcome.up) <= task.phase.up
        assert set(task.outcome.gathered) <= task.phase.gathered
        assert set(task.outcome.metrics) <= task.phase.metrics
        assert task.phase.gathered | task.phase.peer_messages <= set(task.phase.specs)
    assert ran.state.failures == []


def test_there_is_a_model_at_any_time(ran: Federated) -> None:
    samples = torch.from_numpy(ran.backend.worker.samples["train"])
    for state in (ran.start, ran.state.server):
        before = bits(state)
        torch.manual_seed(0)
        generator = torch.get_rng_state()
        models = [ran.spy.model_for(state, None).eval() for _ in range(2)]
        assert torch.equal(torch.get_rng_state(), generator), "it drew from the global generator"
        assert all(isinstance(m, Clusterer) and isinstance(m, LightningModule) for m in models)
        one, two = (model(samples) for model in models)
        assert torch.equal(one.embedding, two.embedding)
        assert len(one.embedding) == len(samples)
        if one.probabilities is not None:
            assert torch.equal(one.probabilities, two.probabilities)
            total = one.probabilities.sum(dim=1)
            eps = 10 * torch.finfo(total.dtype).eps
            torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=eps)
        with torch.no_grad():
            for parameter in models[0].parameters():
                parameter.zero_()
        assert bits(state) == before, "the model shares memory with the server's state"


def test_labels_are_given_only_to_who_declares_them(ran: Federated) -> None:
    for task in ran.spy.tasks:
        assert (task.client.data.labels is not None) is ran.spy.needs_labels


class Crash(BaseException):
    """The process is gone."""


def test_the_same_seed_gives_the_same_bits_and_another_one_others(
    kind: Any, ran: Federated
) -> None:
    torch.rand(7)  # nothing may depend on what the process has drawn before
    again = federate(workload(kind, executor="lightning"))
    assert plain(again.state) == plain(ran.state)
    assert plain(federate(workload(kind, seed=6)).state)["slots"] != plain(ran.state)["slots"]


def crash_after(moments: list[int], given: Any, start: Any, folder: Any) -> None:
    """Run, write a checkpoint after each of these phases, and lose the process at the last."""
    backend = SerialBackend(given, lambda: None)

    def commit(state: RunState, _: object) -> None:
        if state.phases in moments:
            save(folder / str(state.phases), state, backend, keep=1)
        if state.phases == moments[-1]:
            raise Crash

    loop = Loop(backend.worker.method, backend, given, Silent(), commit)
    with pytest.raises(Crash):
        loop.run(RunState(server=start))


def test_a_run_that_crashed_resumes_to_the_same_bits(
    kind: Any, ran: Federated, tmp_path: Any
) -> None:
    phases = ran.state.phases
    moments = sorted({1, phases // 2, phases - 1} & set(range(1, phases)))
    if not moments:
        assert phases == 1  # a single phase has no middle
        return
    given = workload(kind)
    crash_after(moments, given, ran.start, tmp_path)
    for moment in moments:
        again = SerialBackend(given, lambda: None)
        torch.rand(3)
        state = load_checkpoint(tmp_path / str(moment), again).state
        assert state.phases == moment
        Loop(again.worker.method, again, given, Silent(), lambda *_: None).run(state)
        assert plain(state) == plain(ran.state)


def test_what_may_be_raised_gives_the_bits_of_a_run_that_had_it_from_the_start(
    kind: Any, ran: Federated, tmp_path: Any
) -> None:
    config = short(kind)
    for key in config.extensible:
        save(tmp_path, ran.state, ran.backend, keep=1)
        raised = config.model_copy(update={key: getattr(config, key) + 1})
        given = tiny_workload(raised, needs_labels=kind.needs_labels)
        longer = federate(given)
        assert longer.state.phases > ran.state.phases
        again = SerialBackend(given, lambda: None)
        state = load_checkpoint(tmp_path, again).state
        Loop(again.worker.method, again, given, Silent(), lambda *_: None).run(state)
        assert plain(state) == plain(longer.state)


def test_every_method_but_those_of_fixed_length_can_be_made_longer() -> None:
    fixed = {kind.__name__ for kind in METHODS if not kind.Config.extensible}  # type: ignore[attr-defined]
    # CF-CL's weights know the number of steps; Concord's rounds are fixed; the others have one.
    assert fixed == {"CFCL", "Concord", "KFED", "PPFCGAN", "Prototypes", "SDAFC"}
