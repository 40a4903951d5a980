"""Pictures that a user's module gives its logger: the server's are kept, clients' are not."""

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from coterie.errors import RunError
from tests.builders.observers import Silent
from tests.builders.own_module import Lit, federated


class Draws(Lit):
    """A classifier that draws in `validation_step`, as if there always were a TensorBoard."""

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        picture = torch.zeros(3, 8, 8)
        self.logger.experiment.add_image("weights", picture, self.global_step)


class DrawsInTraining(Lit):
    """A classifier that gives its logger a text and a picture while it trains."""

    def training_step(self, batch, batch_idx):
        self.logger.log_image(key="batch", images=[batch[0]])
        self.logger.experiment.add_text("labels", str(batch[1].tolist()))
        return super().training_step(batch, batch_idx)


class Fails(Lit):
    def validation_step(self, batch, batch_idx):
        raise ValueError("mine")


def pictures(folder):
    found = EventAccumulator(str(folder)).Reload()
    return [event.step for event in found.Images("weights")]


def test_pictures_of_the_servers_validation_are_in_its_logger_by_round(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="board")
    federated(tmp_path / "run", Draws(), rounds=2, every=1, logger=logger)
    # The held-out 16 rows are two batches; the last round is scored at the end.
    assert pictures(logger.log_dir) == [1, 1, 2, 2]


def test_numbers_of_the_servers_validation_are_logged_once(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="board")
    federated(tmp_path / "run", Draws(), rounds=2, every=1, logger=logger)
    found = EventAccumulator(logger.log_dir).Reload().Tags()["scalars"]
    assert "val/val_acc" in found
    assert "val_acc" not in found


@pytest.mark.parametrize("logger", [None, CSVLogger], ids=["none", "csv"])
def test_without_a_logger_for_pictures_they_are_left_out_and_told(logger, tmp_path):
    view, given = Silent(), [logger(tmp_path / "csv")] if logger else []
    run = federated(tmp_path / "run", Draws(), rounds=2, every=1, view=view, logger=given)
    assert run.exit_code == 0
    assert sum("no logger of the run takes them" in note for note in view.notes) == 1


@pytest.mark.parametrize(
    ("module", "keys"), [(DrawsInTraining, {}), (Draws, {"holdout": 0.3})], ids=["trains", "holds"]
)
def test_what_a_client_draws_does_not_leave_it(module, keys, tmp_path):
    view = Silent()
    logger = TensorBoardLogger(tmp_path, name="board")
    run = federated(tmp_path / "run", module(), rounds=1, view=view, logger=logger, **keys)
    assert sum("do not leave a client" in note for note in view.notes) == 1
    found = EventAccumulator(logger.log_dir).Reload().Tags()
    assert not [tag for tag in found["images"] if tag == "batch"] + found["tensors"]
    plain = federated(tmp_path / "plain", Lit(), rounds=1, **keys)
    assert set(run.metrics) == set(plain.metrics)


@pytest.mark.parametrize("keys", [{}, {"holdout": 0.3}])
def test_a_module_that_draws_nothing_is_told_nothing(keys, tmp_path):
    view = Silent()
    federated(tmp_path, Lit(), rounds=2, every=1, view=view, **keys)
    assert not [note for note in view.notes if "self.logger" in note]


def test_an_error_of_the_servers_validation_is_a_sentence_with_its_traceback_kept(tmp_path):
    with pytest.raises(
        RunError, match=r"validation_step of Fails .*ValueError: mine.*failures.log"
    ):
        federated(tmp_path, Fails(), rounds=2, every=1)
    told = (tmp_path / "failures.log").read_text()
    assert "round 1, validation_step: server" in told
    assert 'raise ValueError("mine")' in told
