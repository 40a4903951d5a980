"""The best round of a user's module is kept, by what its validation_step logs."""

import pytest
import torch

from coterie.config.schema import CheckpointConfig
from coterie.errors import ConfigError
from tests.builders.observers import Silent
from tests.builders.own_module import Data, Lit, federated, rows, tensors

BY_LOSS = ["checkpoint.best=val_loss"]  # of which less is better


class Drifts(Lit):
    """A classifier that is worse after every second round."""

    def on_train_start(self):
        if self.current_epoch % 2:
            self.head.weight.data.mul_(-20)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def best_of(run):
    return Lit.load_from_checkpoint(run.run_dir / "model" / "best.ckpt")


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        pytest.param({"holdout": 0.2}, "validation/val_loss", id="of clients"),
        pytest.param({"every": 1}, "val/val_loss", id="on the server's loader"),
    ],
)
def test_the_round_with_the_least_loss_is_kept(keys, name, tmp_path):
    module = Drifts()
    run = federated(tmp_path / "run", module, rounds=4, overrides=BY_LOSS, **keys)
    phase, _, metric = name.partition("/")
    found = rows(run, "validation" if "holdout" in keys else "training")
    column = metric if phase == "validation" else name
    losses = {row["round"]: row[column] for row in found if row.get(column) is not None}
    best = min(losses, key=losses.get)
    stored = torch.load(run.run_dir / "model" / "best.ckpt", weights_only=True)
    assert stored["round"] == best != 4
    shorter = federated(tmp_path / "short", module, rounds=best, **keys)
    assert torch.equal(best_of(run).head.weight, shorter.module.head.weight)


@pytest.mark.parametrize("every", [1, 10])
def test_the_last_round_may_be_the_best(every, tmp_path):
    view = Silent()
    run = federated(tmp_path, rounds=3, every=every, overrides=BY_LOSS, view=view)  # it learns
    stored = torch.load(run.run_dir / "model" / "best.ckpt", weights_only=True)
    assert stored["round"] == 3
    loss = run.metrics["val"]["val_loss"]
    assert f"best.ckpt is of round 3, val_loss={loss:.4g}." in view.notes


@pytest.mark.parametrize(
    ("name", "mode", "lower"),
    [
        ("val_loss", "auto", True),
        ("val/MSE", "auto", True),
        ("val_acc", "auto", False),
        ("lossless", "auto", False),
        ("val_loss", "max", False),
        ("val_acc", "min", True),
    ],
)
def test_less_is_better_of_losses_and_errors(name, mode, lower):
    assert CheckpointConfig(best=name, best_mode=mode).lower_is_better is lower


def test_the_best_of_before_a_resume_stays(tmp_path):
    keys = {"holdout": 0.2, "overrides": BY_LOSS}
    first = federated(tmp_path / "run", Drifts(), rounds=1, **keys)
    weight = first.module.head.weight
    again = federated(tmp_path / "run", Drifts(), rounds=2, resume=True, **keys)
    assert torch.equal(best_of(again).head.weight, weight)


def test_the_best_by_another_metric_is_not_taken_for_it(tmp_path):
    view = Silent()
    federated(tmp_path, Lit(), rounds=1, holdout=0.2, overrides=BY_LOSS)
    again = {"rounds": 1, "holdout": 0.2, "resume": True, "view": view}
    run = federated(tmp_path, Lit(), overrides=["checkpoint.best=val_acc"], **again)
    assert not (run.run_dir / "model" / "best.ckpt").exists()
    assert not [note for note in view.notes if note.startswith("best.ckpt is of")]


def test_a_name_that_nothing_logs_is_told_once(tmp_path):
    view = Silent()
    run = federated(
        tmp_path, rounds=3, holdout=0.2, overrides=["checkpoint.best=val_lss"], view=view
    )
    told = [note for note in view.notes if "checkpoint.best=val_lss" in note]
    assert told == [
        "checkpoint.best=val_lss: no measured value has this name, so no best checkpoint is kept; "
        "did you mean val_loss?"
    ]
    assert not (run.run_dir / "model" / "best.ckpt").exists()


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"data": torch.utils.data.TensorDataset(*tensors())}, id="no loader"),
        pytest.param({"every": 0}, id="no evaluation"),
        pytest.param({"personal": ["head.*"]}, id="personal layers"),
    ],
)
def test_what_nothing_can_measure_is_refused(keys, tmp_path):
    keys = {"data": Data(), **keys}
    with pytest.raises(ConfigError, match="val_loss: nothing validates the module between rounds"):
        federated(tmp_path, Lit(), overrides=BY_LOSS, **keys)


def test_the_group_may_stand_before_the_name(tmp_path):
    best = ["checkpoint.best=val/val_loss"]
    run = federated(tmp_path, rounds=2, every=1, overrides=best)
    assert (run.run_dir / "model" / "best.ckpt").exists()
