"""A run's callbacks: those of its config, then those given to `Federation`."""

from collections.abc import Sequence

from lightning import Callback

from coterie.config.schema import RunConfig
from coterie.config.target import build_target
from coterie.contract.callback import RunCallback
from coterie.errors import ConfigError

AnyCallback = Callback | RunCallback


def build_callbacks(
    config: RunConfig, given: Sequence[AnyCallback] = ()
) -> tuple[AnyCallback, ...]:
    """Build the config's callbacks, and check that each can be used in this run.

    Raises:
        ConfigError: If one cannot be built, is not a callback, or needs a Trainer that is missing.
    """
    built: list[AnyCallback] = [
        build_target(f"callbacks[{number}]", section, (Callback, RunCallback))
        for number, section in enumerate(config.callbacks)
    ]
    found = (*built, *given)
    for callback in found:
        name = type(callback).__name__
        if not isinstance(callback, Callback | RunCallback):
            raise ConfigError(
                f"callbacks: {name} is not a callback; inherit from coterie.RunCallback, "
                "lightning.Callback, or both."
            )
        check_writes_nothing(callback)
        if isinstance(callback, Callback) and config.executor != "lightning":
            raise ConfigError(
                f"executor={config.executor}: it has no Trainer, which the callback {name} "
                "follows; choose executor=lightning."
            )
    return found


def check_writes_nothing(callback: object) -> None:
    """Refuse Lightning's ModelCheckpoint, whatever package it is of.

    Raises:
        ConfigError: If it is one.
    """
    if "Checkpoint" in {kind.__name__ for kind in type(callback).__mro__}:
        raise ConfigError(
            f"callbacks: {type(callback).__name__} would write files on every client; the run "
            "writes checkpoints itself, and checkpoint.best=val_loss keeps the best."
        )


def local_callbacks(callbacks: Sequence[AnyCallback]) -> tuple[Callback, ...]:
    """Return the callbacks that follow the Trainer on each client."""
    return tuple(callback for callback in callbacks if isinstance(callback, Callback))


def run_callbacks(callbacks: Sequence[AnyCallback]) -> tuple[RunCallback, ...]:
    """Return the callbacks that follow the whole run."""
    return tuple(callback for callback in callbacks if isinstance(callback, RunCallback))
