"""State roles: first match, nothing without a role, values copied; loading by name and shape."""

import pytest
import torch
from torch import nn

from coterie.contract.roles import Entry, Role, StateRoles, load_slots, load_tensors
from coterie.errors import ContractError

ROLES = StateRoles(
    Entry(pattern="0.bias", role=Role.KEEP),
    Entry(pattern="0.*", role=Role.AVERAGE, slot="linear"),
    Entry(pattern="1.running_*", role=Role.RESET),
    Entry(pattern="1.*", role=Role.AVERAGE, slot="norm"),
)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def test_each_entry_goes_where_its_first_rule_says(module):
    ROLES.check(module)
    assert list(ROLES.slot(module, "linear")) == ["0.weight"]
    assert list(ROLES.slot(module, "norm")) == ["1.weight", "1.bias"]
    assert list(ROLES.kept(module)) == ["0.bias"]
    assert ROLES.of("1.running_mean").role is Role.RESET
    assert ROLES.of("1.num_batches_tracked").role is Role.NOBODY
    assert list(ROLES.slots(module, frozenset({"norm", "linear"}))) == ["linear", "norm"]


def test_num_batches_tracked_is_nobodys_even_under_a_rule_for_all(module):
    roles = StateRoles(Entry(pattern="*", role=Role.AVERAGE, slot="all"))
    assert set(roles.slot(module, "all")) == set(module.state_dict()) - {"1.num_batches_tracked"}


def test_integers_and_booleans_that_no_rule_names_are_constants_and_not_sent(module):
    module.register_buffer("index", torch.arange(3))
    module.register_buffer("mask", torch.tensor([True, False]))
    roles = StateRoles(
        Entry(pattern="mask", role=Role.AVERAGE, slot="all"),
        Entry(pattern="*", role=Role.AVERAGE, slot="all"),
    )
    without = {"1.num_batches_tracked", "index"}
    assert set(roles.slot(module, "all")) == set(module.state_dict()) - without


def test_an_entry_without_a_rule_is_refused(module):
    roles = StateRoles(Entry(pattern="0.*", role=Role.KEEP))
    with pytest.raises(ContractError) as caught:
        roles.check(module)
    assert str(caught.value) == (
        "State entry '1.weight' has no role; add one to the method's StateRoles."
    )


def test_keep_only_takes_what_a_later_stage_still_keeps(module):
    kept = {"0.bias": torch.ones(3), "1.weight": torch.ones(3)}
    assert ROLES.keep_only(kept) == {"0.bias": kept["0.bias"]}


def test_selected_tensors_do_not_follow_the_module(module):
    slot, kept = ROLES.slot(module, "linear"), ROLES.kept(module)
    before = slot["0.weight"].clone(), kept["0.bias"].clone()
    with torch.no_grad():
        module[0].weight += 1
        module[0].bias += 1
    assert torch.equal(slot["0.weight"], before[0])
    assert torch.equal(kept["0.bias"], before[1])
    assert not slot["0.weight"].requires_grad


def test_loading_copies_named_entries_and_leaves_the_others(module):
    bias = module[0].bias.clone()
    weight = torch.full((3, 2), 7.0)
    load_slots(module, {"a": {"0.weight": weight}, "b": {"1.running_mean": torch.ones(3)}})
    weight.zero_()
    assert torch.equal(module[0].weight, torch.full((3, 2), 7.0))
    assert torch.equal(module[1].running_mean, torch.ones(3))
    assert torch.equal(module[0].bias, bias)


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"2.weight": torch.ones(1)}, "'2.weight' is not in the model; send only what it has."),
        ({"0.weight": torch.ones(3)}, "'0.weight' has shape (3,) for (3, 2); check the encoder's"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_loaded(module, tensors, sentence):
    before = module[0].bias.clone()
    with pytest.raises(ContractError) as caught:
        load_tensors(module, {"0.bias": torch.full((3,), 9.0), **tensors})
    assert sentence in str(caught.value)
    assert torch.equal(module[0].bias, before)
