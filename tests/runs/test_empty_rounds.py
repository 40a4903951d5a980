"""Rounds in which no client is present: every method goes on with the next."""

import pytest

from coterie.commands.compose import compose
from coterie.errors import RunError
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from coterie.run.setup import assemble, make_backend
from tests.builders.every_method import CHOICES, small
from tests.builders.observers import Silent
from tests.builders.runs import SERIAL

QUICK = ("kmeans", "concord", "turtle", "ccfc")
"""Methods with heads, whose first rounds make what the others need."""


def ran(choice, empty):
    """The method and the state after a run whose round of this number has no client."""
    given = (*small(choice), *SERIAL)
    everybody = [*range(compose(*given).partition.clients)]
    present = [[] if number == empty else everybody for number in range(1, 60)]
    assembly = assemble(compose(*given, f"participation.availability={present}"))
    backend = make_backend(assembly.workload, lambda: None)
    state, observer = RunState(server=assembly.server), Silent()
    try:
        Loop(assembly.method, backend, assembly.workload, observer, lambda *_: None).run(state)
    finally:
        backend.close()
    told = any("nobody took part" in note for note in observer.notes)
    assert told == (state.server.round >= empty)
    return assembly.method, state


@pytest.mark.parametrize("empty", [1, 2, 3])
@pytest.mark.parametrize(
    "choice", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CHOICES]
)
def test_a_round_without_clients_is_passed_over(choice, empty):
    if (choice, empty) in {("kfed", 1), ("prototypes", 1)}:  # their only round
        with pytest.raises(RunError, match="Nobody took part in any of the 1 phases"):
            ran(choice, empty)
        return
    method, state = ran(choice, empty)
    if choice in QUICK:
        assert method.model_for(state.server, None).head is not None
