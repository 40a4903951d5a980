"""Checks of a run of a user's own module, before actors start."""

from collections.abc import Iterator

from lightning.pytorch.callbacks import EarlyStopping

from coterie.config.schema import RunConfig
from coterie.contract.data import DataArrays
from coterie.contract.loaders import LoaderSamples
from coterie.contract.method import Method
from coterie.contract.own_module import FederatesModule, several_devices
from coterie.errors import ConfigError

_UNSCORED = ("local_tests", "unsupervised", "labelled_shares", "metrics")


def check_own_module(config: RunConfig, method: Method, data: DataArrays) -> None:
    """Check that a user's module has a user's data, and that nothing asks for an encoder."""
    loaders = isinstance(data.samples, LoaderSamples)
    if not isinstance(method, FederatesModule):
        if loaders:
            raise ConfigError(
                "data=lightning: it is for your own module, with experiment=lightning; give "
                "data=torch for a method of Coterie's."
            )
        return
    if not loaders:
        raise ConfigError(
            "method: your own module needs your own data; give data=lightning and "
            "data.target=package.module:Class."
        )
    if config.executor != "lightning":
        _check_executor(config, method)
    if config.compile is not None:
        raise ConfigError("compile: compile parts in the module itself, by torch.compile.")
    _check_strategy(config, method)
    devices, gpus = method.trainer_arguments.get("devices", 1), config.cluster.gpus_per_client
    if isinstance(devices, int) and devices > 1 and 0 < gpus < devices:
        raise ConfigError(
            f"trainer.devices={devices}: an actor has cluster.gpus_per_client={gpus:g}; set it to "
            f"{devices}."
        )
    _check_best(config, method, data)
    for key in _UNSCORED:
        if getattr(config.evaluation, key):
            raise ConfigError(
                f"evaluation.{key}: your own module is evaluated by its validation_step and "
                "test_step; leave it out."
            )


def notes_on_callbacks(config: RunConfig) -> Iterator[str]:
    """Yield a note on Lightning's EarlyStopping, which ends a client's epochs and not the run."""
    found = getattr(config.method, "followers", ())
    epochs = getattr(config.method, "epochs", 1)
    if any(isinstance(callback, EarlyStopping) for callback in found):
        vain = ", and with one epoch a round it changes nothing" if epochs == 1 else ""
        yield (
            f"EarlyStopping ends a client's epochs within a round, not the run{vain}; to end the "
            "run, give a RunCallback with should_stop (docs/callbacks.md)."
        )


def _check_best(config: RunConfig, method: FederatesModule, data: DataArrays) -> None:
    """Refuse a metric for the best checkpoint that nothing can measure between rounds."""
    best = config.checkpoint.best
    if best is None or method.clients_validate:
        return
    sources = data.samples.sources if isinstance(data.samples, LoaderSamples) else ()
    loaded = len(sources) == 1 and sources[0].validation is not None
    if not (loaded and config.evaluation.every) or method.personal:
        raise ConfigError(
            f"checkpoint.best={best}: nothing validates the module between rounds; set "
            "method.holdout=0.1, or give the data module a validation loader and evaluation.every."
        )


def _check_executor(config: RunConfig, method: FederatesModule) -> None:
    """Refuse callbacks and options that need a Trainer, where the executor has none."""
    needs = [*method.trainer_arguments]
    needs += ["keep_optimizer"] if getattr(config.method, "keep_optimizer", False) else []
    needs += ["callbacks"] if getattr(config.method, "followers", ()) else []
    if needs:
        raise ConfigError(f"executor={config.executor}: {needs[0]} needs a Trainer; leave it out.")


def _check_strategy(config: RunConfig, method: FederatesModule) -> None:
    """Refuse options that a strategy of federated optimisation cannot be combined with."""
    strategy = getattr(config.method, "strategy", None)
    if strategy is None:
        return
    if config.privacy.dp.clip is not None:
        raise ConfigError(
            "privacy.dp.clip: it clips what clients send as a plain update, and method.strategy "
            "sends more, or keeps more at its clients; leave one of the two out."
        )
    if several_devices(method.trainer_arguments):
        raise ConfigError(
            "trainer.devices: several devices train in processes of their own, in which "
            "method.strategy cannot follow the steps; leave one of the two out."
        )
    optimizer = config.aggregation.optimizer
    if optimizer != "none" and strategy.steps:
        raise ConfigError(
            f"aggregation.optimizer={optimizer}: method.strategy takes the server's step itself; "
            "leave one of the two out."
        )
