"""Checkpoints: a resumed run has the bits, bytes and failures of an undisturbed one."""

import pytest

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.errors import InterruptedRunError
from coterie.execution.packing import unpack
from tests.checkpoints import save
from tests.methods_for_tests.mailer import Mailer
from tests.methods_for_tests.pool import Pool
from tests.methods_for_tests.running import make_loop, make_workload, plain, run, start

COHORTS = ((0, 2), (0, 1), (2,), 1.0, 2, (1, 2), 0.5, 1.0)
MAILER = make_workload(Mailer.Config(rounds=4, cohorts=COHORTS))


class Crash(BaseException):
    """The process is gone."""


def run_until(workload, phases, folder):
    """Run so many phases, checkpoint, and end as a crash would."""
    loop = make_loop(workload)

    def commit(state, committed):
        if state.phases == phases:
            save(folder, state, loop.backend, {"lines": 10 * phases})
            raise Crash

    loop.commit = commit
    with pytest.raises(Crash):
        loop.run(start(loop))


@pytest.mark.parametrize("phases", range(1, 9))
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(tmp_path, phases):
    undisturbed, done = run(MAILER)
    run_until(MAILER, phases, tmp_path)
    traffic = []
    loop = make_loop(MAILER, lambda state, committed: traffic.append(committed.traffic))
    loaded = load_checkpoint(tmp_path, loop.backend)
    state, position = loaded.state, loaded.tracking
    assert (state.phases, position) == (phases, {"lines": 10 * phases})
    loop.run(state)
    assert plain(state) == plain(undisturbed)
    assert traffic == [committed.traffic for committed in done[phases:]]


def test_there_is_mail_in_flight_and_state_in_that_checkpoint(tmp_path):
    run_until(MAILER, 1, tmp_path)
    state = load_checkpoint(tmp_path, make_loop(MAILER).backend).state
    assert {to: list(letters) for to, letters in state.mail.items()} == {0: [2], 1: [0]}
    assert unpack(state.mail[1][0])["letter"].tolist() == [0, 1, 0]
    assert sorted(state.states) == [0, 2]
    assert state.ledger.peer == 48


def test_a_pool_goes_on_with_its_facts_failures_and_versions(tmp_path):
    workload = make_workload(Pool.Config(rounds=3, broken=(1,)), [2] * 5)
    undisturbed, _ = run(workload)
    run_until(workload, 1, tmp_path)
    loop = make_loop(workload)
    state = load_checkpoint(tmp_path, loop.backend).state
    loop.run(state)
    assert plain(state) == plain(undisturbed)
    assert (state.dropped, len(state.failures)) == (3, 6)


def test_a_run_interrupted_within_a_phase_counts_its_bytes_once(tmp_path):
    undisturbed, done = run(MAILER)
    loop = make_loop(MAILER)
    state, real = start(loop), loop.backend.execute

    def interrupted(order):
        events = real(order)
        yield next(events)
        if order.phase.round == 2:
            raise InterruptedRunError("SIGINT came")
        yield from events

    loop.backend.execute = interrupted
    with pytest.raises(InterruptedRunError):
        loop.run(state)
    save(tmp_path, state, loop.backend)
    traffic = []
    again = make_loop(MAILER, lambda state, committed: traffic.append(committed.traffic))
    resumed = load_checkpoint(tmp_path, again.backend).state
    again.run(resumed)
    assert plain(resumed) == plain(undisturbed)
    assert traffic == [committed.traffic for committed in done[2:]]
