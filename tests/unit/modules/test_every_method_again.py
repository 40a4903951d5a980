"""Every method, run again or resumed after a crash, gives the same bits: models, states, mail."""

from typing import Any

import pytest
import torch

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.execution.serial import SerialBackend
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from tests.checkpoints import save
from tests.methods_for_tests.running import plain
from tests.small_federation import Federated, Silent, federate, tiny_workload
from tests.unit.modules.test_method_contract import METHODS, small


class Crash(BaseException):
    """The process is gone."""


def workload(kind: Any, **run: Any) -> Any:
    return tiny_workload(small(kind), needs_labels=kind.needs_labels, **run)


@pytest.fixture(scope="module", params=METHODS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def whole(kind: Any) -> Federated:
    return federate(workload(kind))


def test_the_same_seed_gives_the_same_bits_and_another_one_others(
    kind: Any, whole: Federated
) -> None:
    torch.rand(7)  # nothing may depend on what the process has drawn before
    again = federate(workload(kind, executor="lightning"))
    assert plain(again.state) == plain(whole.state)
    assert plain(federate(workload(kind, seed=6)).state)["slots"] != plain(whole.state)["slots"]


def crash_after(phases: int, given: Any, start: Any, folder: Any) -> None:
    """Run until so many phases are done, write a checkpoint, and lose the process."""
    backend = SerialBackend(given, lambda: None)

    def commit(state: RunState, _: object) -> None:
        if state.phases == phases:
            save(folder, state, backend, keep=1)
            raise Crash

    loop = Loop(backend._worker.method, backend, given, Silent(), commit)
    with pytest.raises(Crash):
        loop.run(RunState(server=start))


def test_a_run_that_crashed_resumes_to_the_same_bits(
    kind: Any, whole: Federated, tmp_path: Any
) -> None:
    phases = whole.state.phases
    moments = sorted({1, phases // 2, phases - 1} & set(range(1, phases)))
    assert moments or phases == 1  # a single phase has no middle
    for moment in moments:
        folder = tmp_path / str(moment)
        given = workload(kind)
        crash_after(moment, given, whole.start, folder)
        again = SerialBackend(given, lambda: None)
        torch.rand(3)
        state = load_checkpoint(folder, again).state
        assert state.phases == moment
        Loop(again._worker.method, again, given, Silent(), lambda *_: None).run(state)
        assert plain(state) == plain(whole.state)


def test_what_may_be_raised_gives_the_bits_of_a_run_that_had_it_from_the_start(
    kind: Any, tmp_path: Any
) -> None:
    config = small(kind)
    for key in config.extensible:
        shorter = federate(workload(kind))
        backend = SerialBackend(workload(kind), lambda: None)
        save(tmp_path, shorter.state, backend, keep=1)
        raised = config.model_copy(update={key: getattr(config, key) + 1})
        given = tiny_workload(raised, needs_labels=kind.needs_labels)
        longer = federate(given)
        assert longer.state.phases > shorter.state.phases
        again = SerialBackend(given, lambda: None)
        state = load_checkpoint(tmp_path, again).state
        Loop(again._worker.method, again, given, Silent(), lambda *_: None).run(state)
        assert plain(state) == plain(longer.state)


def test_every_method_but_two_can_be_made_longer() -> None:
    fixed = {kind.__name__ for kind in METHODS if not kind.Config.extensible}  # type: ignore[attr-defined]
    # CF-CL's weights know how many steps there are in all; k-FED has one round.
    assert fixed == {"CFCL", "KFED"}
