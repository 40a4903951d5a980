"""The vmapped trainer: hooks, unequal clients, isolation, and refusal of what would be wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.contract.client import ClientData, Plan
from coterie.contract.seeds import seeded
from coterie.errors import ConfigError, InterruptedRunError
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.batches import SeededBatches
from coterie.execution.vmap_trainer import VmapTrainer, VmapTraining
from coterie.execution.vmapped_clients import VmappedClients

SIZES = (23, 11, 15, 11)
"""With batches of 5 the last ones hold 3, 1 (skipped), 5 and 1 (skipped)."""


class Toy(LightningModule):
    """A linear layer with batch norm on noisy samples, an EMA, and a log of its hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
        self.average = nn.Linear(4, 3).requires_grad_(False)
        self.seen: list[Any] = []
        self.double()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net.parameters(), lr=0.01, weight_decay=0.1)

    def on_train_start(self) -> None:
        self.seen.append("start")

    def on_train_epoch_start(self) -> None:
        self.seen.append(("epoch", self.net[0].weight.detach().clone()))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Tensor:
        self.seen.append(batch["seed"])
        with seeded(batch["seed"]):
            return batch["samples"] + torch.rand(batch["samples"].shape, dtype=torch.float64)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = (self.net(batch) - batch[:, :2]).square().mean()
        return {"loss": loss, "size": torch.tensor(float(len(batch)))}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            self.average.weight.lerp_(self.net[0].weight, 0.1)

    def on_train_end(self) -> None:
        self.seen.append("end")


def trainings(
    kind: Callable[[], LightningModule] = Toy, sizes: tuple[int, ...] = SIZES, **plan: Any
) -> list[VmapTraining]:
    found = []
    for client, size in enumerate(sizes):
        samples = np.random.default_rng(client).normal(size=(size, 4))
        data = ClientData(samples=samples, rows=np.arange(size))
        lengths = Plan(batch_size=5, **(plan or {"epochs": 2}))
        with seeded(client):
            module = kind()
        found.append(VmapTraining(module, SeededBatches(data, lengths, seed=client), seed=client))
    return found


def vmapped(found: list[VmapTraining], **keys: Any) -> Any:
    return VmapTrainer(precision="64-true", **keys).fit_all(found)


def assert_close(one: LightningModule, other: LightningModule) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    for key in ours:
        assert torch.allclose(ours[key], theirs[key], rtol=0, atol=1e-10), key


@pytest.mark.parametrize("plan", [{"epochs": 2}, {"steps": 7}, {"steps": 3, "first_step": 4}])
def test_each_client_trains_as_alone(plan: dict[str, int]) -> None:
    ours, theirs = trainings(**plan), trainings(**plan)
    fits = vmapped(ours)
    for one, other, fit in zip(ours, theirs, fits, strict=True):
        alone = BareTrainer(precision="64-true").fit(*other)
        assert fit.steps == alone.steps
        assert fit.metrics == pytest.approx(alone.metrics, abs=1e-10)
        assert_close(one.module, other.module)
        for mine, its in zip(one.module.seen, other.module.seen, strict=True):
            if isinstance(mine, tuple):
                assert mine[0] == its[0]
                assert torch.allclose(mine[1], its[1], rtol=0, atol=1e-10)
            else:
                assert mine == its


def test_clients_without_steps_and_of_other_architectures_train_beside_the_rest() -> None:
    class Wide(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.net.append(nn.Linear(2, 2))
            self.double()

    ours, theirs = ([*trainings(), *trainings(Wide), *trainings(epochs=0)] for _ in range(2))
    fits = vmapped(ours)
    assert [fit.steps for fit in fits[8:]] == [0] * 4
    for one, other in zip(ours, theirs, strict=True):
        BareTrainer(precision="64-true").fit(*other)
        assert_close(one.module, other.module)


def test_a_client_whose_loss_is_not_a_number_spoils_no_other() -> None:
    ours, theirs = trainings(), trainings()
    with torch.no_grad():
        ours[1].module.net[0].bias.fill_(torch.nan)
    vmapped(ours)
    assert ours[1].module.net[0].weight.isnan().all()
    for client in (0, 2, 3):
        BareTrainer(precision="64-true").fit(*theirs[client])
        assert_close(ours[client].module, theirs[client].module)


def test_global_generators_are_put_back_and_modules_have_no_trainer() -> None:
    before, found = torch.get_rng_state(), trainings()
    vmapped(found)
    assert torch.equal(torch.get_rng_state(), before)
    assert found[0].module._trainer is None


def test_it_can_be_stopped_between_steps() -> None:
    steps = []

    def stop() -> None:
        steps.append(0)
        if len(steps) == 3:
            raise InterruptedRunError("stop")

    with pytest.raises(InterruptedRunError):
        vmapped(trainings(), stop=stop)
    assert len(steps) == 3


class Waits(TorchDispatchMode):
    """Records the operations that would wait for a device."""

    NAMES = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in self.NAMES:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_step_waits_for_no_value() -> None:
    class Sgd(Toy):  # Adam reads its number of steps, which is on the CPU
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            entered.append(mode.found.copy())
            return super().training_step(batch, batch_idx)

    mode, entered = Waits(), []
    with mode:
        vmapped(trainings(Sgd, sizes=(23, 11)))
    # The generators are compared after the last step, and the means are read then.
    assert len(entered) > 6
    assert not any(entered)


class Rate(Toy):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.1 + float(torch.rand(())))


class Attribute(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.weighting = float(torch.rand(()))


class Freezes(Toy):
    def on_train_epoch_start(self) -> None:
        self.net[0].requires_grad_(len(self.seen) < 4)
        super().on_train_epoch_start()


class Draws(Toy):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Tensor:
        return batch["samples"] + torch.rand(batch["samples"].shape, dtype=torch.float64)


class Dropout(Toy):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return nn.functional.dropout(self.net(batch)).square().mean()


class Reads(Toy):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.net(batch).square().mean()
        return loss * 2 if loss > 1 else loss


class Counts(Toy):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch).square().mean() * (2 if batch_idx == 0 else 1)


class Seeds(Toy):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class Clips(Toy):
    def on_after_backward(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)


class Whole(Toy):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adagrad(self.net.parameters())


class Asks(Toy):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch).square().mean() * (1 + self.current_epoch)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Rate, "has another optimiser for each client"),
        (Attribute, "has another weighting for each client"),
        (Freezes, "freezes parameters while it trains"),
        (Draws, "draws from the global generators"),
        (Dropout, r"cannot be vmapped \(vmap: called random operation"),
        (Reads, r"cannot be vmapped \(vmap: .*control flow"),
        (Counts, r"cannot be vmapped \(vmap: .*control flow"),
        (Seeds, "steps on batches with a int, not a tensor"),
        (Clips, "overrides on_after_backward"),
        (Whole, "trains by Adagrad, not by SGD, Adam or AdamW"),
        (Asks, "needs the Trainer's current_epoch"),
    ],
)
def test_what_would_train_otherwise_is_refused(kind: Any, reason: str) -> None:
    wanted = rf"^executor=vmap: {kind.__name__} {reason}.*; use executor=bare\.$"
    with pytest.raises(ConfigError, match=wanted):
        vmapped(trainings(kind))


class Convolved(LightningModule):
    """As the encoders: channels last."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.net = layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)


def test_on_a_gpu_networks_with_channels_last_are_stacked_too() -> None:
    """CUDA's batch norm takes no channels-last tensor under `vmap`; the device is a fake one."""
    modules = [Convolved(), Convolved()]
    with FakeTensorMode(allow_non_fake_inputs=True):
        vmapped = VmappedClients(modules, torch.device("cuda"))
        given = vmapped.parameters, vmapped.buffers, torch.rand(2, 5, 3, 8, 8, device="cuda")
        out = vmap(lambda p, b, x: functional_call(modules[0], {**p, **b}, (x,)))(*given)
    assert out.is_cuda
    assert out.shape == (2, 5, 4, 6, 6)
