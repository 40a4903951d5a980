"""A CF-CL run that stops anywhere resumes to the same bits, its peers' buffers and mail as well."""

import pytest
import torch

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.execution.serial import SerialBackend
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from tests.checkpoints import save
from tests.methods_for_tests.running import plain
from tests.small_cfcl import ran, short
from tests.small_federation import Silent, tiny_workload


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("exchange", ["explicit", "implicit", "bulk"])
def test_it_resumes_to_the_same_bits_after_any_phase(exchange: str, tmp_path) -> None:
    workload = tiny_workload(short(exchange=exchange))
    whole = ran(exchange=exchange)
    in_flight = 0
    for phases in range(1, len(whole.commits)):
        folder = tmp_path / str(phases)
        backend = SerialBackend(workload, lambda: None)

        def commit(state: RunState, _: object, phases=phases, folder=folder, backend=backend):
            if state.phases == phases:
                save(folder, state, backend, keep=1)
                raise Crash

        loop = Loop(backend._worker.method, backend, workload, Silent(), commit)
        with pytest.raises(Crash):
            loop.run(RunState(server=whole.start))
        again = SerialBackend(workload, lambda: None)
        torch.rand(3)
        state = load_checkpoint(folder, again).state
        in_flight += bool(state.mail)
        Loop(again._worker.method, again, workload, Silent(), lambda *_: None).run(state)
        assert plain(state) == plain(whole.state)
        assert state.ledger.items == whole.state.ledger.items
    assert in_flight >= 2
