"""What only Lightning's Trainer does is refused by the plain loop, in a sentence."""

import pytest
import torch

from coterie.errors import ConfigError
from coterie.execution.bare_trainer import BareTrainer
from tests.methods_for_tests.everything import Everything, fresh, train


class Manual(Everything):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Clips(Everything):
    def configure_gradient_clipping(self, *args, **kwargs):
        pass


class Steps(Everything):
    def optimizer_step(self, *args, **kwargs):
        pass


class SetsUp(Everything):
    def setup(self, stage):
        pass


class Schedules(Everything):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class ScheduleDict(Everything):
    def configure_optimizers(self):
        return {"optimizer": super().configure_optimizers()}


class EpochReader(Everything):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)["loss"] * (1 + self.current_epoch)


class StepReader(Everything):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.note(self.global_step)


class Asks(Everything):
    def on_train_epoch_end(self):
        self.optimizers()


class EndsEarly(Everything):
    def on_train_batch_start(self, batch, batch_idx):
        return -1


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Manual, "optimises manually; use executor=lightning."),
        (Clips, "overrides configure_gradient_clipping; use executor=lightning."),
        (Steps, "overrides optimizer_step; use executor=lightning."),
        (SetsUp, "overrides setup; use executor=lightning."),
        (EpochReader, "needs the Trainer's current_epoch; use executor=lightning."),
        (StepReader, "needs the Trainer's global_step; use executor=lightning."),
        (Asks, "needs the Trainer's strategy; use executor=lightning."),
        (EndsEarly, "ends epochs early; use executor=lightning."),
    ],
)
def test_what_only_the_trainer_does_is_refused(kind, what):
    module = fresh(kind)
    with pytest.raises(ConfigError) as caught:
        train(BareTrainer(), module)
    assert str(caught.value) == f"executor=bare: {kind.__name__} {what}"
    assert module._trainer is None


@pytest.mark.parametrize(("kind", "given"), [(Schedules, "tuple"), (ScheduleDict, "dict")])
def test_learning_rate_schedules_are_refused(kind, given):
    with pytest.raises(ConfigError) as caught:
        train(BareTrainer(), fresh(kind))
    assert str(caught.value) == (
        f"executor=bare: configure_optimizers gave a {given}; return one optimiser."
    )


def test_sixteen_bits_mixed_are_refused():
    with pytest.raises(ConfigError) as caught:
        train(BareTrainer(precision="16-mixed"), fresh(Everything))
    assert str(caught.value) == (
        "precision=16-mixed: executor=bare has no gradient scaler; use bf16-mixed."
    )
