"""Layers that stay with their clients: a run says that they are not scored."""

import pytest

from coterie.contract import Entry, Role, StateRoles
from coterie.modules.classification import ROLES
from coterie.modules.fedavg import FedAvg
from coterie.run.kept_layers import not_scored
from tests.builders.every_method import METHODS, short
from tests.builders.federation import SIZES, tiny_task


class Personal(FedAvg):
    """FedPer: the classifier stays with each client."""

    roles = StateRoles(
        Entry(pattern="classifier.*", role=Role.KEEP),
        Entry(pattern="encoder.*", role=Role.AVERAGE, slot="encoder"),
        Entry(pattern="augment.*", role=Role.RESET),
    )

    class Config(FedAvg.Config):
        """FedAvg's."""


class OwnNorm(FedAvg):
    """FedBN: normalisation stays with each client, its running statistics too."""

    roles = StateRoles(Entry(pattern="encoder.*.2.*", role=Role.KEEP), *ROLES._entries[1:])

    class Config(FedAvg.Config):
        """FedAvg's."""


def sentence(method):
    return not_scored(method, method.init(dict(enumerate(SIZES)), seed=1))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Personal, "classifier.weight, classifier.bias stay"),
        (OwnNorm, "running_mean, encoder.network.2.running_var stay"),
    ],
)
def test_what_a_client_keeps_of_the_scored_model_is_told(kind, names):
    told = sentence(kind(kind.Config(rounds=1, epochs=1), tiny_task()))
    assert names in told
    assert "initial values" in told


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_no_method_of_coteries_is_scored_with_what_it_keeps(kind):
    assert sentence(kind(short(kind), tiny_task())) is None
