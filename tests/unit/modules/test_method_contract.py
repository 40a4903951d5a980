"""The contract of methods, over every class with a nested `Config` in every file of `modules/`.

Each is run to its end on a tiny federation. Fields whose names end as in `CAPS` are cut down, so
that this takes a moment; a method that counts its length in other words adds them there.
"""

import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest
import torch
from lightning import LightningModule
from pydantic import ValidationError

import modules
from coterie.config.component import Component, config_model, target_of
from coterie.contract import Method, ServerState
from coterie.contract.clusterer import Clusterer
from coterie.execution.packing import digest, pack
from tests.small_federation import SIZES, Federated, federate, tiny_task, tiny_workload

CAPS = {"rounds": 2, "epochs": 1, "batch_size": 8, "global_steps": 10}
CAPS |= {"total_steps": 5, "_every": 2, "_size": 8}


def discover() -> list[type]:
    """Every method: the classes of `modules/` that have a config of their own."""
    found = []
    for info in pkgutil.iter_modules(modules.__path__, "modules."):
        module = importlib.import_module(info.name)
        found += [
            kind
            for _, kind in inspect.getmembers(module, inspect.isclass)
            if kind.__module__ == info.name and "Config" in vars(kind)
        ]
    return found


METHODS = discover()


def small(kind: type) -> Component:
    """The method's default config, cut short."""
    plain = kind.Config()
    cut = {
        name: min(value, cap)
        for name, value in dict(plain).items()
        for ending, cap in CAPS.items()
        if name.endswith(ending) and isinstance(value, int)
    }
    return kind.Config(**cut)


@pytest.fixture(scope="module", params=METHODS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def ran(kind: Any) -> Federated:
    return federate(tiny_workload(small(kind), needs_labels=kind.needs_labels))


def bits(state: ServerState) -> dict[str, Any]:
    slots = {name: digest(pack(tensors)) for name, tensors in state.slots.items()}
    return {"slots": slots, "at": (state.round, state.step), "facts": dict(state.facts)}


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
    with pytest.raises(ValidationError):
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
    method = kind(small(kind), tiny_task())
    start = method.init(sizes, 3)
    torch.rand(7)
    assert bits(method.init(sizes, 3)) == bits(start)
    assert bits(method.init(sizes, 4)) != bits(start)
    assert (start.round, start.step) == (0, 0)


def test_it_ends_after_its_rounds(ran: Federated) -> None:
    assert ran.state.server.round == ran.spy.rounds
    assert ran.spy.next(ran.state.server) is None
    ended = [phase.round for _, phase, *_ in ran.spy.served if phase.ends_round]
    assert ended == list(range(1, ran.spy.rounds + 1))
    for earlier, later in zip(ran.spy.served, ran.spy.served[1:], strict=False):
        same_round = not earlier[1].ends_round
        assert later[1].round == earlier[1].round + (not same_round)
        assert later[1].step == (earlier[1].step + 1 if same_round else 0)


def test_next_offer_and_the_server_half_are_pure(ran: Federated) -> None:
    fresh = type(ran.spy.method)(ran.spy._config, tiny_task())
    for server, phase, means, records, after in ran.spy.served:
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
            assert bits(method.server(server, phase, means, records)) == expected
        assert bits(server) == before
        assert torch.equal(torch.get_rng_state(), generator), "it drew from the global generator"


def test_it_offers_just_what_the_phase_declares(ran: Federated) -> None:
    for server, phase, *_ in ran.spy.served:
        assert set(ran.spy.offer(server, phase)) == phase.down
        assert phase.up <= set(server.slots)
    for turn in ran.spy.turns:
        assert set(turn.slots) == turn.phase.down
        assert set(turn.outcome.up) <= turn.phase.up
        assert set(turn.outcome.records) <= turn.phase.records
        assert set(turn.outcome.metrics) <= turn.phase.metrics
    assert ran.state.failures == []


def test_there_is_a_model_at_any_time(ran: Federated) -> None:
    samples = torch.from_numpy(ran.backend._worker.samples["train"])
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
    for turn in ran.spy.turns:
        assert (turn.client.data.labels is not None) is ran.spy.needs_labels
