"""The tracker, which writes rows to `metrics.jsonl` and to Lightning's loggers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from PIL import Image

from coterie.config.schema import TrackingConfig
from coterie.config.target import build_target
from coterie.errors import DataError
from coterie.tracking.metrics_log import MetricsLog, MetricsRow
from coterie.tracking.score_names import is_own

_log = logging.getLogger(__name__)

Position = Mapping[str, int]
"""The position of tracking in a checkpoint: "offset" in metrics.jsonl, number of "phases", the last
"round" and "step"."""


def build_loggers(
    config: TrackingConfig, directory: Path, run_name: str, resolved_config: Mapping[str, Any]
) -> list[Logger]:
    """Build the loggers that the config names, in order.

    A resumed run adds a version beside the earlier ones (`csv/version_1`, …); online W&B continues
    the same run.

    Each writes to a folder in `directory`.

    Raises:
        ConfigError: If W&B is to be online and no API key is known, or another library's logger
            cannot be built.
    """
    setattr(rank_zero_only, "rank", 0)  # noqa: B010 - untyped; only this process writes, whatever a launcher's variables say
    offers = {"save_dir": str(directory), "run_name": run_name, "experiment_name": "coterie"}
    return [
        build_target(f"tracking.loggers[{number}]", given, (Logger,), **offers)
        if isinstance(given, Mapping)
        else _build(given, config, directory, run_name, resolved_config)
        for number, given in enumerate(config.loggers)
    ]


def _build(
    name: Literal["csv", "tensorboard", "wandb"],
    config: TrackingConfig,
    directory: Path,
    run_name: str,
    resolved_config: Mapping[str, Any],
) -> Logger:
    if name == "wandb":
        from coterie.tracking.wandb_logger import build_wandb_logger  # a slow import

        return build_wandb_logger(config.wandb, directory, run_name, resolved_config)
    if name == "csv":
        return CSVLogger(directory, name="csv", flush_logs_every_n_steps=1)
    return TensorBoardLogger(directory, name="tensorboard", default_hp_metric=False)


class Tracker:
    """Tracker that writes rows to `metrics.jsonl` and to every logger.

    A logger's step is the number of the phase over the whole run, from 1. A metric has one name
    over all stages, `loss` or `clustering/acc`, and that of a client `client/<id>/loss`; a second
    phase of a round reports it as `<phase>/<name>`. The metric `stage` is the number of the stage,
    from 1. A logger that raises is reported once and then left out, so that an outage of a tracker
    does not end a run; `metrics.jsonl` has everything.

    Args:
        loggers: Lightning loggers; `start` starts them.
        client_rows: Rows of clients 0 to `client_rows` - 1 are tracked, always the same clients, so
            that their series have no gaps and loggers have few columns.
        config: The run's config as plain values, which loggers show as hyperparameters.

    Attributes:
        loggers: Those that have not failed.
        problems: One sentence for each logger that was left out.
    """

    def __init__(
        self,
        metrics: MetricsLog,
        loggers: Sequence[Logger],
        client_rows: int,
        config: Mapping[str, Any],
    ) -> None:
        self._metrics = metrics
        self.loggers = list(loggers)
        self._client_rows = client_rows
        self._config = config
        self.problems: list[str] = []
        self._refused: set[tuple[Logger, str]] = set()
        self._started = False
        self._phases = 0
        self._last = (-1, -1)
        self._stages: dict[str, int] = {}
        self._told: dict[str, str] = {}  # metric to the phase of this round that reported it first

    def start(self) -> None:
        """Start the loggers, which make their folders and runs now."""
        for logger in tuple(self.loggers):
            self._guarded(logger, partial(_start, logger, self._config))
        self._started = True

    def log(self, row: MetricsRow) -> None:
        """Track a row; the rows of a client after `client_rows` only count the phase.

        Raises:
            ContractError: If a metric has the name of a reserved key.
            RunError: If `metrics.jsonl` cannot be written.
        """
        if row.status is None and (row.round, row.step) != self._last:
            if row.round != self._last[0]:
                self._told.clear()
            self._last = (row.round, row.step)
            self._phases += 1
        if row.client is not None and row.client >= self._client_rows:
            return
        self._metrics.append(row)
        prefix = "" if row.client is None else f"client/{row.client}/"
        values = {prefix + self._name(row, name): float(row.values[name]) for name in row.values}
        if row.client is None:
            values["stage"] = self._stages.setdefault(row.stage, len(self._stages) + 1)
        for logger in tuple(self.loggers):
            self._guarded(logger, partial(logger.log_metrics, values, step=self._phases))

    def _name(self, row: MetricsRow, name: str) -> str:
        if row.status is not None or not is_own(name):
            return name
        return (
            name if self._told.setdefault(name, row.phase) == row.phase else f"{row.phase}/{name}"
        )

    @property
    def position(self) -> Position:
        """The position of tracking, for a checkpoint."""
        last_round, last_step = self._last
        return {
            "offset": self._metrics.offset,
            "phases": self._phases,
            "round": last_round,
            "step": last_step,
        }

    def log_text(self, row: MetricsRow) -> None:
        """Write a failure or messages to `metrics.jsonl` alone, since loggers take only numbers."""
        self._metrics.append(row)

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Give a table to the loggers that take tables; its columns are the keys of the rows."""
        columns = list(rows[0]) if rows else []
        data = [[row[column] for column in columns] for row in rows]
        self._offer("log_table", name, columns, data, step=self._phases)

    def log_figures(self, paths: Sequence[Path]) -> None:
        """Give pictures to the loggers that take pictures."""
        for path in paths:
            self._offer("log_image", f"figures/{path.stem}", [str(path)], step=self._phases)

    def log_model(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        """Give the saved model to the loggers that take models as folders."""
        self._offer("log_model_folder", folder, metadata)

    def use_model(self, artifact: str) -> None:
        """Pass the model that the run starts from to the loggers that track models by name."""
        self._offer("use_model", artifact)

    def rows(self, *scopes: str) -> list[dict[str, Any]]:
        """Return the rows of these scopes in `metrics.jsonl` so far."""
        return self._metrics.rows(*scopes)

    def rewind(self, position: Position | None) -> None:
        """Go back to a checkpoint's position, or to the start, and cut off later rows.

        Raises:
            DataError: If the position lacks a part.
        """
        start = {"offset": 0, "phases": 0, "round": -1, "step": -1}
        position = position or start
        if missing := sorted(start.keys() - position.keys()):
            raise DataError(
                f"{self._metrics.path}: the checkpoint does not say where it ends "
                f"({missing[0]} is missing); start afresh in a new run_dir."
            )
        self._metrics.truncate_to(position["offset"])
        self._phases = position["phases"]
        rows = self.rows("server")
        stages = dict.fromkeys(str(row.get("stage")) for row in rows)
        ended = [row for row in rows if row.get("round") == position["round"]]
        self._told = {name: str(row.get("phase")) for row in reversed(ended) for name in row}
        self._stages = {stage: number for number, stage in enumerate(stages, start=1)}
        self._last = (position["round"], position["step"])

    def finish(self, status: Literal["success", "failed"]) -> None:
        """Close all loggers; with W&B online, wait for the upload."""
        for logger in tuple(self.loggers) if self._started else ():
            self._guarded(logger, partial(logger.finalize, status))
        self.loggers.clear()
        self._metrics.close()

    def _offer(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of the loggers that have it; a logger that raises is skipped this time."""
        for logger in self.loggers:
            take = _taker(logger, method)
            if take is None:
                continue
            try:
                take(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - trackers raise whatever their libraries do
                if (logger, method) not in self._refused:
                    self._refused.add((logger, method))
                    self._warn(
                        f"{type(logger).__name__} did not accept {method} ({_reason(error)}): the "
                        "run's folder has the data, and scores are still logged"
                    )

    def _guarded(self, logger: Logger, action: Callable[[], None]) -> None:
        """Call an action of a logger, and drop the logger if it raises."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - trackers raise whatever their libraries do
            self.loggers.remove(logger)
            self._warn(
                f"{type(logger).__name__} is left out from here on ({_reason(error)}): the run "
                "goes on and metrics.jsonl has everything; repair it, or remove it from "
                "tracking.loggers, before the next run"
            )

    def _warn(self, problem: str) -> None:
        self.problems.append(problem)
        _log.warning("%s.", problem)


def _taker(logger: Logger, method: str) -> Callable[..., None] | None:
    """Return a logger's method, or None if it has none; TensorBoard gets one for pictures."""
    if method == "log_image" and isinstance(logger, TensorBoardLogger):
        return partial(_add_images, logger)
    return getattr(logger, method, None)


def _add_images(logger: TensorBoardLogger, name: str, paths: Sequence[str], step: int) -> None:
    for path in paths:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        logger.experiment.add_image(name, pixels, step, dataformats="HWC")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _start(logger: Logger, config: Mapping[str, Any]) -> None:
    logger.log_hyperparams(dict(config))
    logger.save()
