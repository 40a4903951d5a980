"""What callbacks of a run are told of its rounds."""

from coterie.contract.callback import Followed, RunCallback
from coterie.contract.observer import PhaseRecord
from coterie.contract.phase import Phase
from tests.builders.observers import Silent


class Losses(RunCallback):
    def __init__(self):
        self.phases, self.rounds = [], []

    def on_phase_end(self, record):
        self.phases.append(record.loss)

    def on_round_end(self, record):
        self.rounds.append((record.phase.name, record.loss))


def test_a_round_that_ends_with_a_validation_has_its_trainings_loss():
    seen = Losses()
    told = Followed(Silent(), [seen])
    losses = [(1, 0.5, None), (2, 0.25, None), (3, None, None)]
    for number, trained, validated in losses:
        for name, loss, ends in (("training", trained, False), ("validation", validated, True)):
            phase = Phase(name=name, stage="own", round=number, ends_round=ends)
            told.phase_finished(PhaseRecord(phase=phase, participants=(0,), loss=loss))
    assert seen.phases == [0.5, None, 0.25, None, None, None]
    assert seen.rounds == [("validation", 0.5), ("validation", 0.25), ("validation", None)]
