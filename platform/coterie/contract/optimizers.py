"""An optimiser's state as named tensors, for clients that keep it between tasks."""

from torch import Tensor, nn
from torch.optim import Optimizer

from coterie.contract.phase import Tensors
from coterie.errors import ContractError


def optimizer_tensors(module: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's state of each parameter that it has updated, on the CPU.

    Returns:
        "<parameter>/<entry>" to tensor: "encoder.weight/exp_avg", "encoder.weight/step" of Adam.

    Raises:
        ContractError: If the optimiser keeps anything but tensors.
    """
    found = {
        f"{name}/{key}": value
        for name, parameter in module.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise ContractError(
                f"{type(optimizer).__name__} keeps a {type(value).__name__} as {name}, and clients "
                "keep tensors only; choose another optimiser."
            )
    return {name: value.detach().cpu().clone() for name, value in found.items()}


def load_optimizer(module: nn.Module, optimizer: Optimizer, tensors: Tensors) -> None:
    """Load `optimizer_tensors` into an optimiser of the same parameters; no tensors reset it."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    kept: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        parameter, _, key = name.rpartition("/")
        kept.setdefault(parameter, {})[key] = value.clone()  # what a client keeps is read-only
    order = [names[p] for group in optimizer.param_groups for p in group["params"]]
    state = {index: kept[name] for index, name in enumerate(order) if name in kept}
    # load_state_dict moves each tensor to its parameter's device.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
