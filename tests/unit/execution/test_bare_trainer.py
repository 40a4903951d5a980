"""The bare trainer and Lightning's: the same bits, hooks and means; what only one can do."""

import numpy as np
import pytest
import torch

from coterie.errors import ConfigError, InterruptedRunError
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.trainer import LightningTrainer
from coterie.execution.without_trainer import SUPPORTED_HOOKS
from tests.builders.everything import Everything, batches, both, fresh, train


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_same_bits(one, other):
    one, other = one.state_dict(), other.state_dict()
    assert one.keys() == other.keys()
    for key in one:
        assert one[key].dtype is other[key].dtype, key
        assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "bf16-true"])
def test_both_give_the_same_bits_hooks_and_means(optimizer, precision):
    (a, fit_a), (b, fit_b) = both(Everything, optimizer, precision=precision)
    assert_same_bits(a, b)
    assert b.log_of_hooks == a.log_of_hooks
    assert fit_a == fit_b
    assert fit_a.steps == 10
    assert set(fit_a.metrics) == {"loss", "norm"}
    start = fresh(Everything, optimizer).to(a.net[0].weight.dtype)
    assert not torch.equal(a.net[0].weight, start.net[0].weight)
    assert torch.equal(a.frozen.running_mean, start.frozen.running_mean)


def test_the_means_are_those_of_the_steps():
    module, fit = train(BareTrainer(), fresh(Everything))
    seen = [what[1] for what in module.log_of_hooks if what[0] == "on_train_batch_end"]
    assert fit.metrics["loss"] == pytest.approx(np.mean([s["loss"] for s in seen]))
    assert fit.metrics["norm"] == pytest.approx(np.mean([s["norm"] for s in seen]))


def test_every_supported_hook_is_called_by_both():
    for module, _ in both(Everything):
        assert {what[0] for what in module.log_of_hooks} >= SUPPORTED_HOOKS


@pytest.mark.parametrize(
    "plan", [{"steps": 7}, {"steps": 7, "first_step": 3}, {"steps": 2, "first_step": 5}]
)
def test_plans_in_steps_that_begin_and_end_within_epochs(plan):
    (a, fit_a), (b, fit_b) = both(Everything, **plan)
    assert_same_bits(a, b)
    assert b.log_of_hooks == a.log_of_hooks
    assert fit_a == fit_b
    assert fit_a.steps == plan["steps"]


@pytest.mark.parametrize("plan", [{"epochs": 0}, {"steps": 0, "first_step": 2}])
def test_no_steps_change_nothing_and_call_no_hook(plan):
    for module, fit in both(Everything, **plan):
        assert (fit.steps, dict(fit.metrics), module.log_of_hooks) == (0, {}, [])
        assert_same_bits(module, fresh(Everything))


def test_the_seed_decides_and_the_global_generators_are_put_back():
    before = torch.get_rng_state()
    one, other = fresh(Everything), fresh(Everything)
    BareTrainer().fit(one, batches(), seed=1)
    BareTrainer().fit(other, batches(), seed=2)
    assert not torch.equal(one.net[0].weight, other.net[0].weight)
    assert torch.equal(torch.get_rng_state(), before)


class LossAlone(Everything):
    """`training_step` returns a tensor; hooks see a mapping in any case, and `log` is harmless."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)["loss"]
        self.log("train/loss", loss)
        return loss


def test_a_step_that_returns_the_loss_alone():
    (a, fit_a), (b, fit_b) = both(LossAlone)
    assert_same_bits(a, b)
    assert b.log_of_hooks == a.log_of_hooks
    assert fit_a == fit_b
    assert set(fit_a.metrics) == {"loss"}


@pytest.mark.parametrize("trainer", [LightningTrainer, BareTrainer])
def test_stop_is_asked_after_each_step(trainer):
    asked = []

    def stop():
        asked.append(None)
        if len(asked) == 3:
            raise InterruptedRunError("enough")

    module = fresh(Everything)
    with pytest.raises(InterruptedRunError, match="enough"):
        trainer(stop=stop).fit(module, batches(), seed=1)
    assert sum(what[0] == "training_step" for what in module.log_of_hooks) == 3


def test_the_determinism_setting_of_before_is_put_back():
    before = torch.are_deterministic_algorithms_enabled()
    for setting in (True, False):
        torch.use_deterministic_algorithms(setting)
        BareTrainer(deterministic=not setting).fit(fresh(Everything), batches(), seed=1)
        assert torch.are_deterministic_algorithms_enabled() is setting
    torch.use_deterministic_algorithms(before)


class Clearing(torch.optim.SGD):
    """An optimiser that does more than clear gradients when it is asked to clear them."""

    cleared = 0

    def zero_grad(self, set_to_none=True):
        self.cleared += 1
        super().zero_grad(set_to_none)


class OwnOptimizer(Everything):
    def configure_optimizers(self):
        self.clearing = Clearing(self.parameters(), lr=0.1)
        return self.clearing


@pytest.mark.parametrize("trainer", [LightningTrainer, BareTrainer])
def test_an_optimizers_own_clearing_is_used(trainer):
    module = fresh(OwnOptimizer)
    fit = trainer().fit(module, batches(), seed=1)
    assert module.clearing.cleared == fit.steps


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


class OnPlateau(Everything):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        each = {"scheduler": schedule, "interval": "epoch", "frequency": 1}
        return {"optimizer": optimizer, "lr_scheduler": each}


class ByEpochs(Everything):
    """Divides the learning rate by 10 after every second epoch."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        each = {"scheduler": schedule, "interval": "epoch", "frequency": 2}
        return {"optimizer": optimizer, "lr_scheduler": each}


def test_a_schedule_by_epochs_is_lightnings():
    (a, fit_a), (b, fit_b) = both(ByEpochs, epochs=5)
    assert_same_bits(a, b)
    assert fit_a == fit_b
    (_, constant), _ = both(Everything, epochs=5)
    assert fit_a != constant


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
    with pytest.raises(RuntimeError, match="not attached to a `Trainer`"):
        module.trainer  # noqa: B018


@pytest.mark.parametrize(
    ("kind", "given"), [(Schedules, "tuple"), (ScheduleDict, "dict"), (OnPlateau, "dict")]
)
def test_other_learning_rate_schedules_are_refused(kind, given):
    with pytest.raises(ConfigError) as caught:
        train(BareTrainer(), fresh(kind))
    assert str(caught.value) == (
        f"executor=bare: configure_optimizers gave a {given}; return one optimiser, or a dict of "
        "it and a schedule by epochs."
    )


class Moved(Everything):
    """Notes where it is moved, and fails in its first step."""

    def __init__(self, *given):
        super().__init__(*given)
        self.places = []

    def to(self, place):
        self.places.append(str(place))
        return self

    def cpu(self):
        return self.to("cpu")

    def training_step(self, batch, batch_idx):
        raise ValueError("no")


def test_a_module_whose_training_fails_leaves_the_gpu():
    module = fresh(Moved)
    module.places.clear()
    with pytest.raises(ValueError, match="no"):
        train(BareTrainer(accelerator="cuda"), module)
    assert module.places == ["cuda", "cpu"]
