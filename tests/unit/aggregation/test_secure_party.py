"""A client refuses steps that would show more than a sum."""

import pytest

from coterie.aggregation.masked_messages import PublicKeys
from coterie.aggregation.masked_sums import encode
from coterie.aggregation.secure_party import Party, threshold
from coterie.errors import RunError
from tests.builders.masked import LAYOUTS


def shared(clients=4):
    """Parties that have shared their keys, and each one's inbox."""
    parties = [Party(client) for client in range(clients)]
    keys = {party.client: party.advertise() for party in parties}
    sealed = {party.client: party.share(keys) for party in parties}
    inboxes = [{s: sealed[s][c] for s in sealed if s != c} for c in range(clients)]
    return parties, inboxes


def masked(clients=4):
    parties, inboxes = shared(clients)
    for party, inbox in zip(parties, inboxes, strict=True):
        party.mask(encode({}, LAYOUTS), inbox)
    return parties


@pytest.mark.parametrize(("clients", "needed"), [(2, 2), (3, 2), (4, 3), (5, 3), (10, 6)])
def test_more_than_half_are_needed(clients, needed):
    assert threshold(clients) == needed


def test_a_client_reveals_once():
    party = masked()[0]
    party.reveal(frozenset({0, 1, 2}))
    with pytest.raises(RunError, match=r"Client 0 refuses .*: its keys have been used before\."):
        party.reveal(frozenset({0, 1, 3}))


@pytest.mark.parametrize("survivors", [{0, 1}, {1, 2, 3}, {0, 1, 2, 3, 9}])
def test_a_client_reveals_for_enough_survivors_that_it_knows_only(survivors):
    with pytest.raises(RunError, match="of 4 clients are left"):
        masked()[0].reveal(frozenset(survivors))


def test_a_client_gives_the_own_mask_of_survivors_and_the_private_key_of_the_lost():
    parties = masked()
    attempt = parties[0]._attempt
    revealed = parties[0].reveal(frozenset({0, 1, 2}))
    assert {c: revealed[c] == attempt.shares[c][:66] for c in range(4)} == {
        0: True,
        1: True,
        2: True,
        3: False,
    }
    assert revealed[3] == attempt.shares[3][66:]


def test_a_client_masks_once_and_with_enough_others_only():
    parties, inboxes = shared()
    with pytest.raises(RunError, match="2 of 4 clients are left"):
        parties[0].mask(encode({}, LAYOUTS), {1: inboxes[0][1]})
    parties[0].mask(encode({}, LAYOUTS), inboxes[0])
    with pytest.raises(RunError, match="refuses"):
        parties[0].mask(encode({}, LAYOUTS), inboxes[0])


def test_a_share_that_was_changed_on_its_way_is_refused():
    parties, inboxes = shared()
    inboxes[0][1] = bytes([inboxes[0][1][0] ^ 1]) + inboxes[0][1][1:]
    with pytest.raises(RunError, match="A share was changed on its way"):
        parties[0].mask(encode({}, LAYOUTS), inboxes[0])


def test_a_list_of_keys_without_others_or_with_a_key_twice_is_refused():
    party, other = Party(0), Party(1).advertise()
    own = party.advertise()
    for directory in ({0: own}, {0: own, 1: own}, {0: other, 1: own}, {1: other}):
        with pytest.raises(RunError, match="Client 0 refuses"):
            party.share(directory)
    party.share({0: own, 1: other})


def test_a_new_attempt_has_new_keys():
    party = Party(0)
    assert party.advertise() != party.advertise()


def test_a_public_key_of_low_order_is_refused():
    party = Party(0)
    with pytest.raises(RunError, match=r"not an X25519 key"):
        party.share({0: party.advertise(), 1: PublicKeys(bytes(32), bytes([9] * 32))})
