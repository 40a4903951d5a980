"""The executor `vmap`, which trains a process's clients as one model with a client axis.

`vmap` over the clients turns their convolutions into one grouped convolution over
(batch, clients · channels, …), their linear layers into one batched product and their batch norms
into one over clients · channels. The clients take their steps together. In a step those with a
batch of one size are one call; the losses are summed, so one backward pass gives every client its
own gradient; and one step of the optimiser, which is elementwise, is a step of each client's own.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import torch
from lightning import LightningModule
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from coterie.contract.client import Batches, Fit
from coterie.contract.seeds import seeded
from coterie.execution.engine import Engine
from coterie.execution.meter import VmapMeter
from coterie.execution.vmap_autocast import VmapAutocast
from coterie.execution.vmappable import (
    architecture,
    check_alike,
    check_vmappable,
    modes,
    refusing,
    trained,
    vmapped_optimizer,
)
from coterie.execution.vmapped_clients import VmappedClients
from coterie.execution.without_trainer import (
    determinism,
    overrides,
    precision_plugin,
    prepared,
    unsupported,
    without_trainer,
)


class VmapTraining(NamedTuple):
    """A client's training: its module, its batches and its seed."""

    module: LightningModule
    batches: Batches
    seed: int


class _Given(NamedTuple):
    """A client's next batch on the device, and what is known of its step."""

    tensors: tuple[Tensor, ...]
    structure: TreeSpec
    place: int
    modes: tuple[bool, ...]

    @property
    def call(self) -> Hashable:
        """What must be equal for clients to share a call."""
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in self.tensors)
        return shapes, self.modes


@dataclass(frozen=True, kw_only=True)
class VmapTrainer(Engine):
    """Executor that trains several clients' modules as one."""

    def fit(self, module: LightningModule, batches: Batches, seed: int) -> Fit:
        """Train one module; see `LocalTrainer`."""
        return self.fit_all([VmapTraining(module, batches, seed)])[0]

    def fit_all(self, trainings: Sequence[VmapTraining]) -> list[Fit]:
        """Train the modules in place, those of one architecture together.

        Raises:
            ConfigError: If the modules cannot be trained as one with the results of each alone.
        """
        plugin = precision_plugin(self.precision, self.accelerator)
        alike: dict[Hashable, list[int]] = {}
        for number, (module, batches, _) in enumerate(trainings):
            check_vmappable(module)
            plugin.convert_module(module)
            alike.setdefault(architecture(module) if batches.steps else None, []).append(number)
        fits = dict.fromkeys(alike.pop(None, []), Fit(steps=0, metrics={}))
        for numbers in alike.values():
            # The longest first, so that those that still train stay the first of the axis.
            numbers.sort(key=lambda number: -trainings[number].batches.steps)
            found = self._fit([trainings[number] for number in numbers], plugin)
            fits |= dict(zip(numbers, found, strict=True))
        return [fits[number] for number in range(len(trainings))]

    def _fit(self, trainings: Sequence[VmapTraining], plugin: Precision) -> list[Fit]:
        modules = [training.module for training in trainings]
        check_alike(modules)
        with ExitStack() as entered:
            vmapped = VmappedClients(modules, torch.device(self.accelerator))
            entered.callback(vmapped.leave)
            entered.enter_context(seeded(trainings[0].seed))
            entered.enter_context(determinism(self.deterministic))
            for module in modules:
                entered.enter_context(without_trainer(module, "vmap"))
            before = _generators(self.accelerator)
            fits = self._steps(trainings, vmapped, plugin)
            if not all(map(torch.equal, before, _generators(self.accelerator))):
                raise unsupported(modules[0], "draws from the global generators", "vmap")
        return fits

    def _steps(
        self, trainings: Sequence[VmapTraining], vmapped: VmappedClients, plugin: Precision
    ) -> list[Fit]:
        """Take all steps: in each, those of the clients that have one left."""
        modules, lengths = [t.module for t in trainings], [t.batches.steps for t in trainings]
        optimizer, meter = vmapped_optimizer(modules, vmapped.parameters), VmapMeter(len(modules))
        streams = [_stream(training, plugin) for training in trainings]
        for step in range(lengths[0]):
            left = sum(length > step for length in lengths)
            if left < vmapped.clients:
                vmapped.narrow(left, optimizer)
            given = [next(stream) for stream in streams[:left]]
            losses = []
            for clients in _calls(given):
                with plugin.train_step_context(), VmapAutocast():
                    outputs = _outputs(vmapped, modules, clients, given)
                meter.add(clients, outputs)
                losses.append(outputs["loss"].sum())
            for parameter in vmapped.parameters.values():
                parameter.grad = None
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if overrides(modules[0], "on_train_batch_end"):
                vmapped.batch_end(modules[0], [one.place for one in given])
            self.stop()
        for stream in streams:
            next(stream, None)  # its last hooks
        return meter.fits()


def _stream(training: VmapTraining, plugin: Precision) -> Iterator[_Given]:
    """Return a client's batches, with its epochs' hooks called in between."""
    module, batches, _ = training
    at_first = trained(module)
    module.on_train_start()
    for _ in range(batches.epochs):
        module.on_train_epoch_start()
        now = modes(module)
        if trained(module) != at_first:
            raise unsupported(module, "freezes parameters while it trains", "vmap")
        for index, batch in enumerate(batches):
            leaves, structure = tree_flatten(prepared(module, plugin, batch, index, "vmap"))
            odd = next((leaf for leaf in leaves if not isinstance(leaf, Tensor)), None)
            if odd is not None:
                raise unsupported(
                    module, f"steps on batches with a {type(odd).__name__}, not a tensor", "vmap"
                )
            yield _Given(tuple(leaves), structure, index, now)
        module.on_train_epoch_end()
    module.on_train_end()


def _calls(given: Sequence[_Given]) -> list[list[int]]:
    """Return the clients grouped by the shape of their batches."""
    calls: dict[Hashable, list[int]] = {}
    for client, one in enumerate(given):
        calls.setdefault(one.call, []).append(client)
    return list(calls.values())


def _outputs(
    vmapped: VmappedClients,
    modules: Sequence[LightningModule],
    clients: Sequence[int],
    given: Sequence[_Given],
) -> dict[str, Tensor]:
    """Return what `training_step` returns for some clients, each value of shape (clients,)."""
    every = zip(*(given[client].tensors for client in clients), strict=True)
    batch = tree_unflatten([torch.stack(own) for own in every], given[clients[0]].structure)
    module = modules[clients[0]]
    with refusing(module):
        return vmapped.step(module, clients, batch, [given[client].place for client in clients])


def _generators(accelerator: str) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return states if accelerator == "cpu" else [*states, torch.cuda.get_rng_state()]
