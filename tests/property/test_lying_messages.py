"""Messages of secure aggregation with any content: the right sum, or one sentence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.aggregation.masked_messages import PublicKeys
from coterie.aggregation.masking import open_sums
from coterie.errors import RunError
from tests.builders.masked import Processes, contribution, phase_run, same_sums, unmasked

CLIENTS = 5
STEPS = ("advertise", "share", "mask", "reveal")
GIVEN = {client: contribution([client + 0.5] * 8, client + 1) for client in range(CLIENTS)}
ANY = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=3),
    st.binary(max_size=200),
    st.sampled_from([0, 32, 66, 148]).map(bytes),
    st.builds(PublicKeys, *[st.binary(min_size=32, max_size=32) | st.integers()] * 2),
    st.frozensets(st.integers(0, 9)),
    st.sampled_from(["<u8", "<i8", "<f4"]).map(lambda kind: np.zeros(20, kind)),
)
VALUES = st.recursive(ANY, lambda inner: st.dictionaries(st.integers(0, 6), inner, max_size=6))


class Lying(Processes):
    """One call's messages are changed on their way, by `change`, at a step."""

    def __init__(self, step, change, *, answers):
        super().__init__({call: {call: given} for call, given in GIVEN.items()})
        self.step, self.change, self.answers = step, change, answers

    def exchange(self, step, messages):
        lies = step == self.step
        if lies and not self.answers:
            messages = {**messages, 1: self.change(messages[1])}
        found = super().exchange(step, messages)
        if lies and self.answers:
            found = {**found, 1: self.change(found[1])}
        return found


def part_of(value, message, keys):
    """The message with one of its parts replaced, `keys` deep, or taken out if that is no value."""
    if not keys or not isinstance(message, dict) or not message:
        return value
    key = sorted(message)[keys[0] % len(message)]
    inner = part_of(value, message[key], keys[1:])
    return (
        {**message, key: inner}
        if inner is not ...
        else {k: message[k] for k in message if k != key}
    )


def opened(processes):
    """What the sums give; None if they are refused in a sentence."""
    try:
        return open_sums(processes.exchange, phase_run(), processes.clients, last=True)
    except RunError as error:
        told = str(error)
    assert told.endswith(".")
    assert "\n" not in told
    return None


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("step", STEPS)
@settings(max_examples=40, deadline=None)
@given(value=VALUES | st.just(...), keys=st.lists(st.integers(0, 6), max_size=2))
def test_any_change_of_a_message(step, answers, value, keys):
    done = opened(Lying(step, lambda message: part_of(value, message, keys), answers=answers))
    if done is not None:
        counted = [GIVEN[client] for client in range(CLIENTS) if client not in done.lost]
        assert same_sums(done.sums, unmasked(counted))


@pytest.mark.parametrize("step", STEPS[:3])
@pytest.mark.parametrize("lie", [None, {}, 3, {1: b""}, np.zeros(3, np.uint64)])
def test_who_answers_malformed_is_left_out_and_the_others_count(step, lie):
    done = opened(Lying(step, lambda message: lie, answers=True))
    assert done.lost == {1: f"its answer to the step {step} of secure aggregation was not valid"}
    assert same_sums(done.sums, unmasked([GIVEN[c] for c in range(CLIENTS) if c != 1]))


def test_malformed_shares_are_not_needed_once_the_masked_sum_is_there():
    done = opened(Lying("reveal", lambda message: {1: {0: b"short"}}, answers=True))
    assert done.lost == {}
    assert same_sums(done.sums, unmasked(GIVEN.values()))


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ("mask", lambda vector: vector + np.uint64(3) ** np.arange(len(vector), dtype=np.uint64)),
        ("reveal", lambda found: {1: {c: bytes(66) for c in found[1]}}),
        ("advertise", lambda found: {1: PublicKeys(bytes([9] * 32), bytes([8] * 32))}),
    ],
)
def test_what_is_well_formed_and_wrong_ends_in_a_sentence(step, change):
    processes = Lying(step, change, answers=True)
    with pytest.raises(RunError, match=r"^(Masks did not cancel|Shares do not|Client \d refuses)"):
        open_sums(processes.exchange, phase_run(), processes.clients, last=True)


@pytest.mark.parametrize("step", ["share", "mask", "reveal"])
@pytest.mark.parametrize("lie", [None, {}, [1], {1: {0: 3}}, {0: PublicKeys(b"", b"")}])
def test_a_server_that_sends_malformed_messages_is_refused_by_the_client(step, lie):
    processes = Lying(step, lambda message: lie, answers=False)
    with pytest.raises(RunError, match=r"^(Client 1 refuses|A step of secure aggregation names)"):
        open_sums(processes.exchange, phase_run(), processes.clients, last=True)


@pytest.mark.parametrize("of", ["masking", "sealing"])
def test_a_client_that_gives_one_key_twice_ends_the_run_for_nobody(of):
    def same(answer):
        key = getattr(answer[1], of)
        return {1: PublicKeys(key, key)}

    done = opened(Lying("advertise", same, answers=True))
    assert done is not None
    assert list(done.lost) == [1]
    assert same_sums(done.sums, unmasked([GIVEN[client] for client in (0, 2, 3, 4)]))
