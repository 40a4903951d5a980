"""A FedBYOL run that stops half way resumes to the same bits, targets and predictors as well."""

import pytest
import torch

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.execution.packing import unpack
from coterie.execution.serial import SerialBackend
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from modules.byol import FedBYOL
from tests.checkpoints import save
from tests.small_federation import Silent, federate, same_bits, tiny_workload

CONFIG = FedBYOL.Config(
    rounds=3, epochs=1, batch_size=8, hidden=7, projection=5, predictor_threshold=0.1,
    participation=0.6,
)  # fmt: skip


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("phases", [1, 2])
def test_it_resumes_to_the_same_bits(tmp_path, phases: int) -> None:
    workload = tiny_workload(CONFIG)
    whole = federate(workload)
    backend = SerialBackend(workload, lambda: None)

    def commit(state: RunState, _: object) -> None:
        if state.phases == phases:
            save(tmp_path, state, backend, keep=1)
            raise Crash

    loop = Loop(backend._worker.method, backend, workload, Silent(), commit)
    with pytest.raises(Crash):
        loop.run(RunState(server=whole.start))
    again = SerialBackend(workload, lambda: None)
    torch.rand(3)
    state = load_checkpoint(tmp_path, again).state
    Loop(again._worker.method, again, workload, Silent(), lambda *_: None).run(state)
    assert state.server.round == 3
    for slot, tensors in whole.state.server.slots.items():
        assert same_bits(tensors, state.server.slots[slot])
    kept = {client: unpack(handle) for client, handle in state.states.items()}
    assert kept.keys() == whole.kept.keys()
    assert all(same_bits(kept[client], whole.kept[client]) for client in kept)
    assert any("predictor" in name for tensors in kept.values() for name in tensors)
