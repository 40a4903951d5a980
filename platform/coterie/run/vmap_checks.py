"""Checks that a config's clients can be trained as one model, before anything starts."""

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from coterie.config.component import load_target, target_of
from coterie.config.schema import RunConfig
from coterie.contract.method import Task
from coterie.contract.seeds import blank
from coterie.errors import ConfigError


def check_vmap(config: RunConfig, task: Task) -> None:
    """Refuse what `executor=vmap` cannot train with the same results as each client alone."""
    if config.executor != "vmap":
        return
    refused = (
        _undeclared(config)
        or _alone(config)
        or _drawing(blank(lambda: task.encoder.build(task.shape)))
    )
    if refused:
        raise ConfigError(f"executor=vmap: {refused}, or use executor=bare.")


def _undeclared(config: RunConfig) -> str:
    """Return why a method cannot be trained with vmap, and what to do; "" if it can."""
    kind = load_target(target_of(config.method))
    if vars(kind).get("vmappable", False):
        return ""
    return f"method={kind.__name__} does not declare that it is vmappable; choose one that does"


def _alone(config: RunConfig) -> str:
    """Return which option needs clients to train one by one, with a remedy; "" if none does."""
    key, timeout = config.method.micro_batch, config.faults.client_timeout_s
    size = None if key is None else getattr(config.method, key)
    if size is not None:
        return f"method.{key}={size} caches gradients for one client at a time; leave it out"
    if config.compile:
        return f"compile={config.compile} compiles one client's encoder at a time; leave it out"
    if timeout is not None:
        return (
            f"faults.client_timeout_s={timeout:g} limits single clients, which train together; "
            "leave it out"
        )
    if config.privacy.dp.unit == "sample":
        return "privacy.dp.unit=sample clips gradients for one client at a time; use unit=client"
    return ""


def _drawing(encoder: nn.Module) -> str:
    """Return why an encoder that draws random numbers cannot be vmapped; "" if it draws none."""
    for name, part in encoder.named_modules():
        if isinstance(part, _DropoutNd) and part.p > 0:
            return f"the encoder's {name} is a {type(part).__name__}; choose an encoder without"
    return ""
