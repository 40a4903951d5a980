"""A client that sends 1.6e7 in every number of a sum: its failure, and the others' bits."""

import pytest

from tests.builders.every_method import small
from tests.builders.runs import assert_same, run

pytestmark = pytest.mark.ci

SERIAL = ("cluster=serial", "executor=bare", "faults.on_client_failure=drop")
CASES = [
    ("KMeans", "moments"),
    ("KMeans", "lloyd"),
    ("Concord", "moments"),
    ("Concord", "prototypes"),
    ("Concord", "labels"),
    ("Prototypes", "prototypes"),
    ("Turtle", "moments"),
    ("Turtle", "scatter"),
    ("Turtle", "labels"),
]


def ran(kind, at, how, *keys):
    target = f"method.target=tests.builders.inflates:{kind}"
    wrong = (target, f"method.how={how}", f"method.at={at}")
    return run(
        *SERIAL, *wrong, "partition=iid", "partition.clients=4", *keys, base=small(kind.lower())
    )


@pytest.mark.parametrize(("kind", "at"), CASES)
def test_it_is_refused_in_every_phase_and_the_others_count(kind, at):
    broken, inflated = (ran(kind, at, how) for how in ("raise", "huge"))
    assert inflated.dropped == broken.dropped > 0
    assert all("client 1 failed" in failure for failure in inflated.failures)
    assert all("1.6e+07" in failure for failure in inflated.failures)
    assert_same(inflated, broken)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["negative", "heavy"])
@pytest.mark.parametrize(("kind", "at"), [case for case in CASES if case[0] != "Prototypes"])
def test_so_are_negative_counts_and_weights_of_many(kind, at, how):
    spoiled = ran(kind, at, how)
    assert spoiled.dropped > 0
    assert all("client 1 failed" in failure for failure in spoiled.failures)


def test_masks_do_not_hide_it():
    masked = ran("KMeans", "lloyd", "huge", "privacy.secure_aggregation=true")
    assert_same_server(masked, ran("KMeans", "lloyd", "huge"))
    assert all("1.6e+07" in failure for failure in masked.failures)


def assert_same_server(a, b):
    a.ledger = b.ledger
    assert_same(a, b)
