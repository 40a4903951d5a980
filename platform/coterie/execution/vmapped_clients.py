"""The tensors of several clients' modules, stacked along a leading client axis."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.optim import Optimizer


class VmappedClients:
    """Parameters and buffers (clients, …) of modules of one architecture.

    The modules' own tensors become views of the vmapped tensors', so that what trains these trains
    them.

    Args:
        modules: One per client, with the same names, shapes and `requires_grad`.
        device: Where to train.

    Attributes:
        clients: How many still train, the first of the axis.
        parameters: Name to the parameters of these; leaves.
        buffers: Name to the buffers of all.
    """

    def __init__(self, modules: Sequence[LightningModule], device: torch.device) -> None:
        self.clients, self._modules = len(modules), modules
        self._indices: dict[tuple[int, ...], Tensor] = {}
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        kinds = (("parameters", self.parameters), ("buffers", self.buffers))
        for kind, stacked in kinds:
            every = [dict(getattr(module, f"named_{kind}")()) for module in modules]
            for name, first in every[0].items():
                own_values = [tensors[name].detach() for tensors in every]
                if device.type != "cpu":  # `vmap` has no CUDA batch norm for channels-last layouts
                    own_values = [value.contiguous() for value in own_values]
                joined = torch.stack(own_values).to(device)
                stacked[name] = joined.requires_grad_(first.requires_grad)
                for tensors, own in zip(every, joined.detach(), strict=True):
                    tensors[name].data = own
        for module in modules:  # what is neither parameter nor buffer, and `device`
            module.to(device)

    def leave(self) -> None:
        """Move the modules to the CPU, where they share the memory of one tensor."""
        cpu = torch.device("cpu")
        if all(t.device == cpu for t in (*self.parameters.values(), *self.buffers.values())):
            return
        VmappedClients(self._modules, cpu)

    def narrow(self, clients: int, optimizer: Optimizer) -> None:
        """Continue with the first clients only, since the others have taken their last step.

        The optimizer is over `parameters`; its state is cut to these clients too.
        """
        self.clients, kept = clients, dict[Tensor, Tensor]()
        for name, before in self.parameters.items():
            leaf = before.detach()[:clients].requires_grad_(before.requires_grad)
            self.parameters[name] = kept[before] = leaf
            if before in optimizer.state:
                state = optimizer.state.pop(before)
                optimizer.state[leaf] = {
                    key: value[:clients] if _like(value, before) else value
                    for key, value in state.items()
                }
        for group in optimizer.param_groups:
            group["params"] = [kept[parameter] for parameter in group["params"]]

    def step(
        self, module: LightningModule, clients: Sequence[int], batch: Any, indices: Sequence[int]
    ) -> dict[str, Tensor]:
        """Return what `training_step` gives for clients, each (clients,); update buffers.

        Args:
            module: Whose modes and attributes count for all of these clients.
            clients: Their numbers on the axis, ascending.
            batch: Their batches: tensors (clients, …) in lists, tuples and dicts.
            indices: The batches' numbers in their epochs.
        """
        call, index = _Hook(module, "training_step"), torch.tensor(indices)
        if len(clients) == self.clients:
            buffers = {name: buffer[: self.clients] for name, buffer in self.buffers.items()}
            return _outputs(call, self.parameters, buffers, batch, index)
        rows = self._rows(clients)
        parameters, buffers = (
            {name: tensor.index_select(0, rows) for name, tensor in tensors.items()}
            for tensors in (self.parameters, self.buffers)
        )
        outputs = _outputs(call, parameters, buffers, batch, index)
        for name, buffer in buffers.items():
            self.buffers[name].index_copy_(0, rows, buffer)
        return outputs

    def batch_end(self, module: LightningModule, indices: Sequence[int]) -> None:
        """Call `on_train_batch_end` once for all clients that train, on the vmapped tensors."""
        buffers = {name: buffer[: self.clients] for name, buffer in self.buffers.items()}
        tensors = {**_named(self.parameters), **_named(buffers)}
        hook = _Hook(module, "on_train_batch_end")
        functional_call(hook, tensors, (None, None, torch.tensor(indices)))

    def _rows(self, clients: Sequence[int]) -> Tensor:
        """Return the clients as an index on the device, copied there once and without waiting."""
        key = tuple(clients)
        if key not in self._indices:
            device = next(iter(self.parameters.values())).device
            rows = torch.tensor(key)
            rows = rows.pin_memory() if device.type == "cuda" else rows
            self._indices[key] = rows.to(device, non_blocking=True)
        return self._indices[key]


def _outputs(
    call: nn.Module,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    batch: Any,
    index: Tensor,
) -> dict[str, Tensor]:
    def one(parameters: Any, buffers: Any, batch: Any, index: Tensor) -> Any:
        tensors = {**_named(parameters), **_named(buffers)}
        given: Any = functional_call(call, tensors, (batch, index))
        found = given if isinstance(given, Mapping) else {"loss": given}
        return {name: torch.as_tensor(value) for name, value in found.items()}

    outputs: dict[str, Tensor] = vmap(one)(dict(parameters), dict(buffers), batch, index)
    return outputs


class _Hook(nn.Module):
    """Wrapper that calls a module's hook where `functional_call` would call `forward`."""

    def __init__(self, module: LightningModule, hook: str) -> None:
        super().__init__()
        self.module, self._hook = module, hook

    def forward(self, *arguments: Any) -> Any:
        return getattr(self.module, self._hook)(*arguments)


def _named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"module.{name}": tensor for name, tensor in tensors.items()}


def _like(value: object, parameter: Tensor) -> bool:
    """Return whether an optimiser's value has the client axis; the number of steps has none."""
    return isinstance(value, Tensor) and value.shape == parameter.shape
