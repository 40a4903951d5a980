"""The contract's default bodies, and the helpers that methods share."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from coterie.contract import (
    Entry,
    Method,
    Phase,
    Role,
    Schedule,
    ServerState,
    StateRoles,
    WeightedUpdate,
    averaged,
    blank,
    concatenated,
)
from coterie.errors import ContractError
from tests.builders.federation import tiny_task

SERVER = ServerState(
    slots={"a": {"w": torch.zeros(2)}, "b": {"w": torch.ones(2)}},
    round=3,
    metadata={"seed": 7, "name": "x"},
)
PHASE = Phase(name="p", stage="s", round=4, down=frozenset({"a"}), up=frozenset({"a", "b"}))
ROLES = StateRoles(
    Entry(pattern="weight", role=Role.AVERAGE, slot="matrix"),
    Entry(pattern="bias", role=Role.AVERAGE, slot="shift"),
)


class Least(Method):
    """A method with nothing but what the contract does not give."""

    rounds = 5

    def __init__(self, config=None, task=None):
        pass

    def init(self, sizes, seed):
        return SERVER

    def next(self, server):
        return PHASE

    def client(self, client, phase, slots):
        raise AssertionError

    def model_for(self, server, client):
        raise AssertionError


def test_by_default_a_method_trains_without_labels():
    assert Least.needs_labels is False


def test_by_default_the_slots_of_the_phase_are_offered():
    offered = Least().offer(SERVER, PHASE)
    assert set(offered) == {"a"}
    assert offered["a"] is SERVER.slots["a"]


def test_by_default_the_server_takes_the_means_and_moves_on():
    means = {"b": WeightedUpdate(weight=3, tensors={"w": torch.full((2,), 0.5)})}
    after = Least().server(SERVER, PHASE, means, {})
    assert (after.round, after.step) == (4, 0)
    assert after.slots["a"] is SERVER.slots["a"]
    assert after.slots["b"]["w"].tolist() == [0.5, 0.5]
    assert after.metadata == SERVER.metadata
    assert SERVER.slots["b"]["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("missing", ["init", "next", "client", "model_for"])
def test_what_has_no_default_has_to_be_there(missing):
    body = {name: value for name, value in vars(Least).items() if name != missing}
    wanted = {k: v for k, v in body.items() if not k.startswith(("__", "_abc", "_is"))}
    broken = type("Broken", (Method,), {**wanted, "__init__": Least.__init__})
    with pytest.raises(TypeError, match=missing):
        broken()


def test_contributions_are_the_named_slots_with_the_clients_weight():
    module = nn.Linear(2, 3)
    up = ROLES.contributions(module, frozenset({"shift"}), weight=5)
    assert set(up) == {"shift"}
    assert up["shift"].weight == 5
    assert torch.equal(up["shift"].tensors["bias"], module.bias)
    assert set(ROLES.contributions(module, ROLES.averaged, weight=1)) == {"matrix", "shift"}


def test_averaged_are_the_means_without_their_weights():
    means = {"a": WeightedUpdate(weight=9, tensors={"w": torch.ones(1)})}
    assert averaged(means) == {"a": means["a"].tensors}


def test_gathered_is_one_clients_record_after_the_other():
    gathered = {4: {"c": torch.ones(1, 2)}, 2: {"c": torch.zeros(2, 2), "d": torch.ones(1)}}
    assert concatenated(gathered, "c")[:, 0].tolist() == [1.0, 0.0, 0.0]


def test_a_blank_module_leaves_the_global_generator_as_it_was():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, other = (blank(lambda: nn.Linear(4, 4)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.weight, other.weight)


def test_a_whole_number_among_the_metadata():
    assert SERVER.whole("seed") == 7
    for key in ("name", "none"):
        with pytest.raises(
            ContractError, match=f"Metadata '{key}' is .* `init` has to set a whole"
        ):
            SERVER.whole(key)


def test_a_schedule_names_the_stage_of_each_round():
    schedule = Schedule((("first", 2), ("skipped", 0), ("then", 3)))
    assert schedule.rounds == 5
    stages = [schedule.at(number) for number in range(1, 7)]
    assert stages == ["first", "first", "then", "then", "then", None]
    assert schedule.last == "then"


@pytest.mark.parametrize(("k", "enough"), [(1, [True] * 4), (3, [False, False, True, True])])
def test_vectors_of_too_few_samples_are_held_back_only_under_k_anonymity(
    k: int, enough: list[bool]
) -> None:
    task = replace(tiny_task(), k_anonymity=k)
    assert task.enough(torch.tensor([0, 2, 3, 4])).tolist() == enough
