"""Rounds in which no client is present: every method goes on with the next."""

import pytest

from coterie import Federation
from coterie.commands.compose import compose
from coterie.errors import RunError
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from coterie.run.setup import assemble, make_backend
from tests.builders.every_method import CHOICES, small
from tests.builders.observers import Silent
from tests.builders.runs import SERIAL

pytestmark = pytest.mark.ci

ONE_SHOT = ("kfed", "prototypes", "sda_fc", "ppfc_gan")
QUICK = ("kmeans", "concord", "turtle")
HEADS = (*QUICK, "ccfc", "dec")
"""Methods with heads, whose first rounds make what the others need."""


def present(given, empty):
    """The key by which all clients are there in every round but one."""
    everybody = [*range(compose(*given).partition.clients)]
    rounds = [[] if number == empty else everybody for number in range(1, 60)]
    return f"participation.availability={rounds}"


def ran(choice, empty):
    """The method and the state after a run whose round of this number has no client."""
    given = (*small(choice), *SERIAL)
    assembly = assemble(compose(*given, present(given, empty)))
    backend = make_backend(assembly.workload, lambda: None)
    state, observer = RunState(server=assembly.server), Silent()
    try:
        Loop(assembly.method, backend, assembly.workload, observer, lambda *_: None).run(state)
    finally:
        backend.close()
    told = any("no client took part" in note for note in observer.notes)
    assert told == (state.server.round >= empty)
    return assembly.method, state


@pytest.mark.parametrize("empty", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "choice", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CHOICES]
)
def test_a_round_without_clients_is_passed_over(choice, empty):
    if (choice, empty) in {(c, 1) for c in ONE_SHOT}:  # their only round
        with pytest.raises(RunError, match="No client took part in any of the 1 phases"):
            ran(choice, empty)
        return
    method, state = ran(choice, empty)
    if choice in HEADS:
        assert method.model_for(state.server, None).head is not None


@pytest.mark.parametrize(
    "choice",
    ["kmeans", *(pytest.param(c, marks=pytest.mark.slow) for c in ("prototypes", "concord"))],
)
def test_so_is_one_under_noise(choice, tmp_path):
    noise = ("privacy.dp.clip=1", "privacy.dp.noise_multiplier=0.5", "privacy.dp.delta=1e-5")
    alone = ("method.restarts=1",) if choice == "kmeans" else ()
    given = (*small(choice), *SERIAL, *noise, *alone, "method.clusters=3", "evaluation.every=0")
    ran = Federation(compose(*given, present(given, 1), f"run_dir={tmp_path / 'run'}")).run()
    assert 0 < ran.metrics["clustering"]["nmi"] <= 1
