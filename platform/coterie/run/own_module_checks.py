"""Checks of runs of a user's own module, before actors start."""

from coterie.config.schema import RunConfig
from coterie.contract.data import DataArrays
from coterie.contract.loaders import LoaderSamples
from coterie.contract.method import Method
from coterie.contract.own_module import FederatesModule
from coterie.errors import ConfigError

_UNSCORED = ("local_tests", "unsupervised", "labelled_shares", "metrics")


def check_own_module(config: RunConfig, method: Method, data: DataArrays) -> None:
    """Check that a module of the user's has data of the user's, and nothing that needs an encoder.

    Raises:
        ConfigError: Naming the first key that does not fit.
    """
    own, loaders = isinstance(method, FederatesModule), isinstance(data.samples, LoaderSamples)
    if loaders and not own:
        raise ConfigError(
            "data=lightning: it is for a module of your own, with experiment=lightning; Coterie's "
            "methods take arrays, such as data=npz or data=class_folders."
        )
    if not own:
        return
    if not loaders:
        raise ConfigError(
            "method: a module of your own takes its own data; give data=lightning and "
            "data.target=package.module:Class."
        )
    if config.executor != "lightning":
        raise ConfigError(
            f"executor={config.executor}: a module of your own may need its Trainer; use "
            "executor=lightning."
        )
    if config.compile is not None:
        raise ConfigError("compile: compile parts in the module itself, by torch.compile.")
    strategy = getattr(config.method, "strategy", None)
    if config.privacy.dp.clip is not None and strategy is not None:
        raise ConfigError(
            "privacy.dp.clip: it clips what clients send as a plain update, and method.strategy "
            "sends more, or keeps more at its clients; leave one of the two out."
        )
    for key in _UNSCORED:
        if getattr(config.evaluation, key):
            raise ConfigError(
                f"evaluation.{key}: a module of your own is evaluated by its validation_step and "
                "test_step; leave it out."
            )
