"""What the terminal says of the clients that take part."""

import pytest

from coterie.contract.observer import PhaseRecord
from coterie.contract.phase import Phase
from coterie.tracking.progress import Progress


def test_what_is_simulated_stands_behind_the_clients_until_the_next_phase():
    progress, phase = Progress(clock=lambda: 0.0), Phase(name="p", stage="s", round=1)
    simulated = {"absent": 2, "dropped": 0, "stragglers": 1}
    progress.begin(phase, 3, None)
    progress.end(PhaseRecord(phase=phase, participants=(0, 1, 4), simulated=simulated))
    assert progress.clients == "clients 3/3 (2 absent, 1 slow)"
    progress.begin(phase, 3, None)
    assert progress.clients == "clients 0/3"


@pytest.mark.parametrize(
    ("losses", "word"),
    [([3, 2], "2.0000 (falling)"), ([2, 3], "3.0000 (rising)"), ([5, 3, 2, 2], "2.0000")],
)
def test_a_loss_that_stands_is_not_falling_any_more(losses, word):
    progress, phase = Progress(clock=lambda: 0.0), Phase(name="p", stage="s", round=1)
    for loss in losses:
        progress.begin(phase, 1, None)
        progress.end(PhaseRecord(phase=phase, participants=(0,), loss=loss))
    assert progress.loss == f"loss {word}"
