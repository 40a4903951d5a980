"""The Python API: a run of a config, or of a LightningModule and data as they are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.commands.compose import compose_plain
from coterie.config.component import load_target, target_of
from coterie.config.explain import one_of
from coterie.config.loading import load_config
from coterie.config.schema import RunConfig
from coterie.contract.callback import RunCallback
from coterie.contract.loaders import Source, data_with
from coterie.contract.observer import Observer
from coterie.contract.own_module import check_module, own_base
from coterie.errors import ConfigError
from coterie.execution.own_trainer import materialised
from coterie.run import federation

_FOLDER = "coterie.modules.strategies."
_STRATEGIES = {
    "fedprox": "fedprox:FedProx",
    "scaffold": "scaffold:Scaffold",
    "fednova": "fednova:FedNova",
    "feddyn": "feddyn:FedDyn",
}
_OPTIMIZERS = {"fedavgm": "momentum", "fedadam": "adam"}
_NEED_NO_LABELS = ("iid", "by_client", "file", "rest")


class Federation(federation.Federation):
    """Runs one experiment: that of a config, or a module and data of the user's own.

    Args:
        config: The experiment, for example `coterie.compose("experiment=fedmcc_digits")`; or give
            `module` and `data`, and any of the arguments behind them.
        view: Shows progress; by default on the terminal or in the notebook.
        callbacks: `RunCallback`s, which follow the run in this process, and Lightning callbacks,
            which follow the Trainer on each client.
        module: A LightningModule, or its class as "package.module:Class".
        data: A LightningDataModule, a DataLoader or a torch Dataset, a list with one of them for
            each client, or a class as "package.module:Class".
        clients: Number of clients; 5 by default, or one for each in the list.
        partition: How rows are split: "iid" by default, or the name of a partition.
        alpha: Concentration of the partition "dirichlet", which it implies.
        rounds: Rounds.
        epochs: Local epochs a round.
        seed: Of the whole run.
        participation: Share of the clients in each round.
        personal: Names of layers that stay with each client, with * for any text.
        holdout: Share of each client's rows that it holds out for `validation_step`.
        strategy: "fedavg", "fedprox", "scaffold", "fednova" or "feddyn"; or a server's optimiser,
            "fedavgm" or "fedadam".
        mu: Weight of FedProx's term.
        keep_optimizer: Whether optimisers and schedulers go on over rounds.
        every: Rounds between evaluations.
        logger: A Lightning logger, or several.
        trainer: Arguments of the Trainer on each client.
        cluster: Keys of the cluster, such as {"backend": "serial"} or {"num_actors": 4}.
        loader_batch_size: Samples a batch of a Dataset without a loader.
        run_dir: Folder to write to.
        resume: Whether to go on from the last checkpoint in `run_dir`.
        overrides: Any other keys, as on the command line:
            ["privacy.secure_aggregation=true"].

    Raises:
        ConfigError: If the parts do not fit each other or the machine.
        DataError: If the data is missing or does not fit.
    """

    def __init__(
        self,
        config: RunConfig | None = None,
        view: Observer | None = None,
        callbacks: Sequence[Any] = (),
        *,
        module: Any = None,
        data: Any = None,
        clients: int | None = None,
        partition: str | None = None,
        alpha: float | None = None,
        rounds: int = 10,
        epochs: int = 1,
        seed: int = 0,
        participation: float = 1.0,
        personal: Sequence[str] = (),
        holdout: float = 0.0,
        strategy: str = "fedavg",
        mu: float | None = None,
        keep_optimizer: bool = False,
        every: int = 1,
        logger: Any = None,
        trainer: Mapping[str, Any] | None = None,
        cluster: Mapping[str, Any] | None = None,
        loader_batch_size: int | None = None,
        run_dir: str | Path | None = None,
        resume: bool = False,
        overrides: Sequence[str] = (),
    ) -> None:
        loggers = logger if isinstance(logger, list | tuple) else [logger] if logger else []
        if config is not None:
            if module is not None or data is not None:
                raise ConfigError("Federation: give either a config, or a module and data.")
            super().__init__(config, view, callbacks, loggers)
            return
        if module is None or data is None:
            raise ConfigError("Federation: give a module and data, or a config of compose().")
        several = isinstance(data, list | tuple)
        choice = partition or ("by_client" if several else "dirichlet" if alpha else "iid")
        method = {
            "rounds": rounds,
            "epochs": epochs,
            "participation": float(participation),
            "personal": [*personal],
            "holdout": float(holdout),
            "keep_optimizer": keep_optimizer,
            "validation_every": every,
            "trainer": {k: v for k, v in (trainer or {}).items() if _is_plain(v)},
            **_class_of(module),
        }
        own = {
            "loader_batch_size": loader_batch_size,
            "read_labels": choice not in _NEED_NO_LABELS,
            **_class_of(data),
        }
        plain = compose_plain(
            "experiment=lightning", "data=lightning", f"partition={choice}", *overrides
        )
        plain["method"] |= method
        plain["data"] |= own
        _choose_strategy(plain, strategy, mu)
        plain["partition"] |= {} if clients is None or several else {"clients": clients}
        plain["partition"] |= {} if alpha is None else {"alpha": float(alpha)}
        plain["cluster"] = {**(plain.get("cluster") or {}), **(cluster or {})}
        plain["evaluation"] = {"every": every, **(plain.get("evaluation") or {})}
        plain |= {"seed": seed, "resume": resume}
        plain |= {} if run_dir is None else {"run_dir": str(run_dir)}
        if several:
            plain["partition"] = {"target": plain["partition"]["target"]}
            plain["method"]["own_validation"] = any(_validates(each) for each in data)
        built = load_config(plain)
        objects = {k: v for k, v in (trainer or {}).items() if not _is_plain(v)}
        followers = tuple(c for c in callbacks if not isinstance(c, RunCallback))
        _check_callbacks(followers)
        given = built.data
        if not isinstance(data, str):
            given.attach(data)  # type: ignore[attr-defined]  # LightningData's
        if not isinstance(module, str):
            check_module(module, trainer or {})
            whole = materialised(module, lambda: _first_loader(built))
            built.method.attach(whole, followers, objects)  # type: ignore[attr-defined]
        else:
            built.method.attach(None, followers, objects)  # type: ignore[attr-defined]
        runners = [c for c in callbacks if isinstance(c, RunCallback)]
        super().__init__(built, view, runners, loggers)


def _choose_strategy(plain: dict[str, Any], strategy: str, mu: float | None) -> None:
    """Set the keys of a strategy by its name."""
    own = {} if mu is None else {"mu": float(mu)}
    if strategy in _STRATEGIES:
        plain["method"]["strategy"] = {"target": _FOLDER + _STRATEGIES[strategy], **own}
    elif strategy in _OPTIMIZERS:
        given = plain.get("aggregation") or {}
        plain["aggregation"] = {**given, "optimizer": _OPTIMIZERS[strategy]}
    elif strategy != "fedavg":
        known = ("fedavg", *_STRATEGIES, *_OPTIMIZERS)
        raise ConfigError(f"strategy={strategy}: {one_of(strategy, known)}")


def _first_loader(config: RunConfig) -> dict[str, Any]:
    """The arguments of `Trainer.fit` for the data of a config."""
    data = load_target(target_of(config.data))(config.data).arrays()
    source: Source = data.samples.sources[0]
    return data_with(source, source.loader, None)


def _class_of(given: Any) -> dict[str, Any]:
    """The keys that say what was given: a class by its path, or an object."""
    if isinstance(given, str):
        return {"module": given}
    one = given[0] if isinstance(given, list | tuple) and given else given
    return {"module": f"{type(one).__module__}:{type(one).__qualname__}", "is_object": True}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _validates(data: Any) -> bool:
    """Whether a client's own data has a validation loader."""
    base: Any = own_base(data, "LightningDataModule")
    return base is not None and type(data).val_dataloader is not base.val_dataloader


def _check_callbacks(callbacks: Sequence[Any]) -> None:
    for callback in callbacks:
        kinds = {kind.__name__ for kind in type(callback).__mro__}
        if "Callback" not in kinds:
            raise ConfigError(
                f"callbacks: {type(callback).__name__} is no callback; inherit from "
                "coterie.RunCallback or lightning.Callback."
            )
        if "Checkpoint" in kinds:
            raise ConfigError(
                f"callbacks: {type(callback).__name__} would write files on every client; the run "
                "writes checkpoints itself, see checkpoint.every."
            )
