"""The Python API: runs a config, or a LightningModule and data objects."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from typing_extensions import Unpack

from coterie.commands.compose import compose_plain
from coterie.commands.own_class_keys import NEED_NO_LABELS, strategy_keys
from coterie.config.component import load_target, target_of
from coterie.config.explain import nearest, one_of
from coterie.config.loading import load_config
from coterie.config.schema import RunConfig
from coterie.contract.callback import RunCallback
from coterie.contract.loaders import Source
from coterie.contract.observer import Observer
from coterie.contract.own_module import check_module, own_base
from coterie.errors import ConfigError
from coterie.execution.own_trainer import materialised
from coterie.run import federation
from coterie.run.callbacks import check_writes_nothing

_NONE = object()
_DECIDED = {
    **dict.fromkeys(
        ("lr", "learning_rate", "optimizer"), "your module's configure_optimizers decides it"
    ),
    **dict.fromkeys(("noniid", "non_iid", "dirichlet_alpha"), "give alpha, such as alpha=0.5"),
    **dict.fromkeys(("bf16", "fp16"), 'give overrides=["precision=bf16-mixed"]'),
    **dict.fromkeys(("cpu", "device", "gpu"), 'give overrides=["accelerator=cpu"], or cluster'),
    **dict.fromkeys(("wandb", "tensorboard"), "give logger, such as logger=WandbLogger()"),
    "batch_size": "your DataLoader has it; for a Dataset without one give loader_batch_size",
}
"""Words of other libraries for what something else decides here."""


class OwnRun(TypedDict, total=False):
    """The arguments of a run of the user's own module; `module` and `data` are required."""

    module: Any
    """A LightningModule, or its class as "package.module:Class"."""
    data: Any
    """A LightningDataModule, a DataLoader or a torch Dataset, a list with one of them for each
    client, or a class as "package.module:Class"."""
    clients: int
    """Number of clients; 5 by default, or one for each in the list."""
    partition: str
    """How rows are split: "iid" by default, or the name of a partition."""
    alpha: float
    """Concentration of a Dirichlet partition; setting it implies partition="dirichlet"."""
    rounds: int
    """Rounds; 10 by default."""
    epochs: int
    """Local epochs per round; 1 by default."""
    seed: int
    """Seed of the whole run; 0 by default."""
    participation: float
    """Share of the clients in each round; all by default."""
    personal: Sequence[str]
    """Names of layers that stay with each client, with * for any text."""
    holdout: float
    """Share of each client's rows that it holds out for `validation_step`."""
    strategy: str
    """"fedavg", "fedprox", "scaffold", "fednova" or "feddyn"; or a server's optimiser, "fedavgm",
    "fedadam", "fedyogi" or "fedadagrad"."""
    mu: float
    """Weight of FedProx's term."""
    keep_optimizer: bool
    """Whether optimisers and schedulers keep their state between rounds."""
    every: int
    """Rounds between evaluations; 1 by default."""
    logger: Any
    """A Lightning logger, or several."""
    trainer: Mapping[str, Any]
    """Arguments of the Trainer on each client."""
    cluster: Mapping[str, Any] | str
    """Keys of the cluster, such as {"num_actors": 4}, or a choice, such as "serial"."""
    loader_batch_size: int
    """Batch size of a Dataset that comes without a loader; 32 by default."""
    run_dir: str | Path
    """Folder to write to."""
    resume: bool
    """Whether to continue from the last checkpoint in `run_dir`."""
    overrides: Sequence[str]
    """Any other keys, as on the command line: ["privacy.secure_aggregation=true"]."""


class Federation(federation.Federation):
    """Runs one experiment, from a config or from the user's module and data.

    Args:
        config: The experiment, for example `coterie.compose("experiment=fedmcc_digits")`, with
            `data` if it has data=torch; or give `module` and `data`, and any other keys of
            `OwnRun`.
        view: Shows progress; by default on the terminal or in the notebook.
        callbacks: `RunCallback`s, which follow the run in this process, and Lightning callbacks,
            which follow the Trainer on each client.
        own: `module`, `data`, `clients`, `rounds`, …: `help(coterie.commands.own_module.OwnRun)`
            and docs/lightning.md list all of them.

    Raises:
        ConfigError: If the parts do not fit each other or the machine.
        DataError: If the data is missing or does not fit.
    """

    def __init__(
        self,
        config: RunConfig | None = None,
        view: Observer | None = None,
        callbacks: Any = (),
        **own: Unpack[OwnRun],
    ) -> None:
        _check_mappings(own)
        loggers, callbacks = _several(own.get("logger") or ()), _several(callbacks or ())
        _refuse_classes(own, callbacks)
        _check_loggers(loggers)
        unknown = sorted(own.keys() - OwnRun.__annotations__.keys())
        if unknown:
            raise ConfigError(f"Federation: {unknown[0]}: {_unknown(unknown[0])}")
        if config is None:
            config = _config_of(own)
            _attach(config, own, callbacks)
            callbacks = [c for c in callbacks if isinstance(c, RunCallback)]
        elif not isinstance(config, RunConfig):
            raise ConfigError(
                f"Federation: {type(config).__name__} is not a config; give compose(…), or "
                "module=… and data=…."
            )
        elif own.keys() - {"logger", "data"}:
            raise ConfigError(
                'Federation: give a config, perhaps of compose(…, "data=torch") and data, or a '
                "module and data."
            )
        elif "data" in own:
            config = _with_data(config, own["data"])
        super().__init__(config, view, callbacks, loggers)


def _with_data(config: RunConfig, data: Any) -> RunConfig:
    """Return a config of data=torch with the data that a program gives."""
    keys: Any = config.data
    if not target_of(keys).endswith(":TorchData"):
        raise ConfigError('Federation: data goes with compose(…, "data=torch"), or with a module.')
    filled = keys.model_copy(update=_class_of(data))
    if not isinstance(data, str):
        filled.attach(data)
    return config.model_copy(update={"data": filled})


def _config_of(own: OwnRun) -> RunConfig:
    """Return the config of a run of the user's own module, without its objects."""
    if own.get("module") is None or own.get("data") is None:
        raise ConfigError("Federation: give a module and data, or a config of compose().")
    several, alpha = isinstance(own["data"], list | tuple), own.get("alpha")
    default = "by_client" if several else "iid" if alpha is None else "dirichlet"
    choice, every = own.get("partition", default), own.get("every", 1)
    words = ["experiment=lightning", "data=lightning", f"partition={choice}"]
    cluster = own.get("cluster", {})
    words += [f"cluster={cluster}"] if isinstance(cluster, str) else []
    plain = compose_plain(*words, *_several(own.get("overrides", ())))
    plain["method"] |= {**_method_keys(own), "validation_every": every}
    plain["data"] |= {"read_labels": choice not in NEED_NO_LABELS, **_class_of(own["data"])}
    plain["data"] |= _given(own, "loader_batch_size")
    if several:
        _check_count(own)
        plain["partition"] = {"target": plain["partition"]["target"]}
        plain["method"]["own_validation"] = any(map(_validates, own["data"]))
    else:
        plain["partition"] |= _given(own, "clients")
    plain["partition"] |= {} if alpha is None else {"alpha": float(alpha)}
    if not isinstance(cluster, str):
        plain["cluster"] = {**(plain.get("cluster") or {}), **cluster}
    plain["evaluation"] = {"every": every, **(plain.get("evaluation") or {})}
    plain |= _given(own, "seed", "resume", "run_dir")
    _choose_strategy(plain, own.get("strategy", "fedavg"), own.get("mu"))
    return load_config(plain)


def _check_count(own: OwnRun) -> None:
    """Refuse a number of clients that differs from the number of given data sets."""
    clients, sets = own.get("clients"), len(own["data"])
    if clients is not None and clients != sets:
        raise ConfigError(
            f"clients={clients}: data is a list of {sets}, one for each client; leave clients out, "
            "or join the data sets."
        )


def _unknown(name: str) -> str:
    """Return the reason to refuse an unknown argument, with what to give instead."""
    if name in _DECIDED:
        return f"there is no such argument; {_DECIDED[name]}."
    if name in RunConfig.model_fields:
        return f'it is a key of the config; give overrides=["{name}=…"].'
    known = ("callbacks", *OwnRun.__annotations__)
    close = nearest(name, known)
    return f"there is no such argument; did you mean {close}?" if close else one_of(name, known)


def _several(given: Any) -> Sequence[Any]:
    """Return a list or tuple as it is, and a single object as a list of one."""
    return given if isinstance(given, list | tuple) else [given]


def _refuse_classes(own: OwnRun, callbacks: Sequence[Any]) -> None:
    """Refuse classes where objects are needed."""
    objects: dict[str, Any] = {**own, "callbacks": callbacks}
    for key in ("module", "data", "callbacks", "logger"):
        for one in _several(objects.get(key)):
            if isinstance(one, type):
                name = one.__name__
                raise ConfigError(f"{key}: {name} is a class; give an object, such as {name}().")


def _method_keys(own: OwnRun) -> dict[str, Any]:
    given = _given(own, "rounds", "epochs", "participation", "holdout", "keep_optimizer")
    for name in given.keys() & {"participation", "holdout"}:
        given[name] = float(given[name])
    trainer = {k: v for k, v in own.get("trainer", {}).items() if _is_plain(v)}
    personal = [*_several(own.get("personal", ()))]
    module = {**_class_of(own["module"]), **_hyperparameters(own["module"])}
    return {**given, "personal": personal, "trainer": trainer, **module}


def _given(own: OwnRun, *names: str) -> dict[str, Any]:
    return {name: value for name, value in own.items() if name in names and value is not None}


def _attach(config: RunConfig, own: OwnRun, callbacks: Sequence[Any]) -> None:
    """Attach the objects that a config cannot hold."""
    module, data, trainer = own["module"], own["data"], own.get("trainer", {})
    followers = tuple(c for c in callbacks if not isinstance(c, RunCallback))
    _check_callbacks(followers)
    method: Any = config.method
    given: Any = config.data
    if not isinstance(data, str):
        given.attach(data)
    if isinstance(module, str):
        module = None
    else:
        check_module(module, trainer)
        module = materialised(module, lambda: _source(config))
    method.attach(module, followers, {k: v for k, v in trainer.items() if not _is_plain(v)})


def _choose_strategy(plain: dict[str, Any], strategy: str, mu: float | None) -> None:
    """Set the keys of a strategy by its name."""
    keys = strategy_keys(strategy)
    if mu is not None and not any(key.endswith("strategy.target") for key in keys):
        raise ConfigError(f'mu={mu:g}: strategy="{strategy}" has no proximal term; give "fedprox".')
    for key, value in keys.items():
        section, _, inner = key.partition(".")
        own: dict[str, Any] = {inner: value}
        if inner == "strategy.target":
            own = {"strategy": {"target": value, **({} if mu is None else {"mu": float(mu)})}}
        plain[section] = {**(plain.get(section) or {}), **own}


def _source(config: RunConfig) -> Source:
    """Return the first data set of a config's data."""
    source: Source = load_target(target_of(config.data))(config.data).arrays().samples.sources[0]
    return source


def _class_of(given: Any) -> dict[str, Any]:
    """Return config keys for an object: its class by path, or a mark that an object was given."""
    if isinstance(given, str):
        return {"module": given}
    one = given[0] if isinstance(given, list | tuple) and given else given
    return {"module": f"{type(one).__module__}:{type(one).__qualname__}", "is_object": True}


def _hyperparameters(module: Any) -> dict[str, Any]:
    """Return an object's plain hyperparameters and attributes, which a resumed run compares.

    Those of its layers, such as the `p` of dropouts, stand together, each value once.
    """
    if isinstance(module, str) or (base := own_base(module)) is None:
        return {}
    lightnings = vars(base())
    stored = dict(module.hparams)
    found = {str(name): value for name, value in stored.items() if _is_own(name, value)}
    for name, value in vars(module).items():
        if name not in lightnings and _is_own(name, value) and found.get(name, _NONE) != value:
            found[f"self.{name}" if name in found else name] = value
    layers: dict[str, set[float]] = {}
    for part in [*module.modules()][1:]:
        for name, value in vars(part).items():
            if isinstance(value, float) and math.isfinite(value):
                layers.setdefault(f"layers.{name}", set()).add(value)
    found |= {name: sorted(values) for name, values in sorted(layers.items())}
    return {"arguments": found} if found else {}


def _is_own(name: object, value: Any) -> bool:
    """Return whether an attribute is public, and its value plain and finite."""
    odd = isinstance(value, float) and not math.isfinite(value)
    return _is_plain(value) and not odd and not str(name).startswith("_")


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _validates(data: Any) -> bool:
    """Return whether a client's own data has a validation loader."""
    base: Any = own_base(data, "LightningDataModule")
    return base is not None and type(data).val_dataloader is not base.val_dataloader


def _check_mappings(own: OwnRun) -> None:
    """Refuse a Trainer in place of its arguments, and a cluster that is neither keys nor a name."""
    if not isinstance(own.get("trainer", {}), Mapping):
        raise ConfigError(
            'trainer: give the arguments of a Trainer, such as {"gradient_clip_val": 1.0}; each '
            "client has its own Trainer."
        )
    if not isinstance(cluster := own.get("cluster", {}), Mapping | str):
        raise ConfigError(
            f'cluster={cluster!r}: give keys, such as {{"num_actors": 4}}, or a choice, such as '
            '"serial".'
        )


def _check_loggers(loggers: Sequence[Any]) -> None:
    for logger in loggers:
        if not hasattr(logger, "log_hyperparams"):
            raise ConfigError(
                f"logger={logger!r}: it is not a Lightning logger; give an object such as "
                'CSVLogger("logs"), or overrides=["tracking.loggers=[csv]"].'
            )


def _check_callbacks(callbacks: Sequence[Any]) -> None:
    for callback in callbacks:
        kinds = {kind.__name__ for kind in type(callback).__mro__}
        if "Callback" not in kinds:
            raise ConfigError(
                f"callbacks: {type(callback).__name__} is not a callback; inherit from "
                "coterie.RunCallback or lightning.Callback."
            )
        check_writes_nothing(callback)
