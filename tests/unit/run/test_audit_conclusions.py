"""Three sentences of an audit, for runs that were protected more or less."""

from dataclasses import replace

import pytest

from coterie.config.privacy import PrivacyConfig
from coterie.evaluation.membership import Membership
from coterie.run.audit_conclusions import conclusions
from coterie.run.audit_messages import AuditedKey

NOISY = {"dp": {"clip": 1.0, "noise_multiplier": 2.0}}
SPENT = {"epsilon": 3.861, "delta": 1e-5, "unit": "client"}


def key(name="weights", samples=20, summed=0):
    return AuditedKey(
        type="slot",
        key=name,
        specs=("float32 (3,)",),
        phases=1,
        clients=2,
        bytes=1000,
        samples=samples,
        summed=summed,
    )


def attack(auc, low, high):
    return Membership(
        members=9, others=9, auc=auc, auc_interval=(low, high), tpr=0.1, tpr_interval=(0, 0.2)
    )


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([key()], "each of them is computed from 20 samples or more (weights)."),
        (
            [key(), key("peer_message", 1)],
            "Single samples, or numbers of one sample each, left the clients (peer_message)",
        ),
        ([key(samples=1, summed=10)], "of which the server reads sums over 10 clients or more."),
        ([key(samples=None)], "which do not say from how many samples each is computed."),
    ],
)
def test_the_first_says_what_was_sent(keys, said):
    assert said in conclusions(keys, {}, PrivacyConfig(), {})[0]


@pytest.mark.parametrize(
    ("attacks", "said"),
    [
        ({"loss": attack(0.8, 0.7, 0.9)}, "better than chance: loss is right in 80% of pairs"),
        ({"loss": attack(0.52, 0.4, 0.6)}, "The attacks did not tell training samples from"),
        ({"loss, untrained": attack(0.8, 0.7, 0.9)}, "was not tried."),
    ],
)
def test_the_second_says_what_attacks_found(attacks, said):
    assert said in conclusions([key()], attacks, PrivacyConfig(), {})[1]


@pytest.mark.parametrize(
    ("privacy", "spent", "said"),
    [
        ({}, {}, "No noise was added and no masks were on"),
        ({"secure_aggregation": True}, {}, "protects the messages and not the model"),
        (NOISY, SPENT, "ε is 3.86 for one client, at δ = 1e-05. The smaller ε is, the less"),
        (
            {**NOISY, "secure_aggregation": True},
            SPENT,
            "δ is about the chance that it tells more. Masks hid",
        ),
        (NOISY, {}, "says its ε. No masks were on, so the server could look into what each client"),
    ],
)
def test_the_third_says_what_bounds_the_rest(privacy, spent, said):
    assert said in conclusions([key()], {}, PrivacyConfig(**privacy), spent)[2]


def test_what_masks_do_not_hide_is_named():
    masked = PrivacyConfig(secure_aggregation=True)
    loss = replace(key("loss"), type="metric")
    public = replace(key("share"), type="keys")
    said = conclusions([key(summed=2), loss, public], {}, masked, {})[2]
    assert "masks hid from the server what each client sent, but not loss, which protects" in said
    said = conclusions([key(summed=2), public], {}, masked, {})[2]
    assert "masks hid from the server what each client sent, which protects" in said


def test_noise_that_clients_add_themselves_is_no_noise_in_the_model():
    said = conclusions([key()], {}, PrivacyConfig(), {}, 9.82)[2]
    assert said.startswith("Clients added noise to some of what they sent")
    assert "ε is 9.82. It does not cover the model" in said
