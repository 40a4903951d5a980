"""A search for hyperparameters: trials as runs of a study, by Ray Tune, and the best of them."""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path

from coterie.config.about import about
from coterie.config.component import load_target, target_of
from coterie.config.explain import nearest, one_of
from coterie.config.plain_files import read_json
from coterie.config.schema import RunConfig
from coterie.distributed.run_resources import RunResources, capacity, need
from coterie.distributed.tuning import Report, ray_for_trials, run_trials
from coterie.errors import ConfigError, DataError, InterruptedRunError, RunError, listed, reason
from coterie.evaluation.canvas import guarded
from coterie.evaluation.clustering_metrics import SCORES
from coterie.evaluation.scorer import UNSUPERVISED
from coterie.run.interrupts import Interrupts
from coterie.studies.comparison_figure import comparison_figure
from coterie.studies.configs_apart import check_all
from coterie.studies.curves import ROUND, points
from coterie.studies.plan import Variant
from coterie.studies.processes import PlannedRun
from coterie.studies.study import Study
from coterie.studies.study_view import StudyView, trials_table
from coterie.studies.trial import TrialOrder, begin, read_objective
from coterie.studies.tune_plan import LABEL_FREE, Point, TuneConfig
from coterie.studies.tune_table import TrialResult, TuneTable
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.claim import is_claimed
from coterie.tracking.run_records import RunRecord

_POLL_S = 0.2
_log = logging.getLogger(__name__)


def run_tuning(
    options: TuneConfig,
    trials: Mapping[Variant, Point],
    configs: Mapping[Variant, RunConfig],
    view: StudyView,
) -> int:
    """Run the trials of a search, and write table and figure; also after an interrupt.

    Returns:
        The exit code: 0 all trials completed or were stopped; 1 one failed; 3 clients were dropped.

    Raises:
        ConfigError: If the folder cannot be used, or a run in it has another config.
        InterruptedRunError: After the report, if a signal stopped the trials.
    """
    out = options.run_dir
    first = next(iter(configs))  # trials differ in values alone
    _check_objective_fits(options.objective, configs[first])
    check_all({first: configs[first]}, "run_dir", out)
    study = Study.plan(
        "tune", configs, (options.seed,), out=out, resume=out is not None, key="run_dir"
    )
    interrupted: InterruptedRunError | None = None
    with study.opened() as check_place, Interrupts() as interrupts:

        def check() -> None:
            check_place()
            interrupts.check("the trials have stopped")

        search = _Search(options, study, view, check)
        try:
            search.run()
        except InterruptedRunError as error:
            interrupted = error
        finally:
            view.close()
            search.wait()
        check_place()
        records = search.records()
        drawn = [trials[run.variant] for run in study.runs]
        table = _table(options, drawn, records, blind=_blind(options, configs))
        texts = (table.sentence, *table.problems)
        view.finish(trials_table(table), texts, _report(table, study))
    if interrupted is not None:
        raise InterruptedRunError(
            f"{str(interrupted).rstrip('.')}; go on with the same command and "
            f"run_dir={study.folder}."
        ) from interrupted
    if table.problems:
        return RunError.exit_code
    return 3 if any(record.dropped for record in records) else 0


def _check_objective_fits(objective: str, config: RunConfig) -> None:
    """Refuse the score of a clustering for a method that learns classes, and the other way round.

    Raises:
        ConfigError: If trials would not measure the objective.
    """
    method, (group, _, score) = load_target(target_of(config.method)), objective.partition("/")
    own = hasattr(method, "module_for")  # a LightningModule of the user's logs anything
    learns_classes = method.needs_labels
    fitting = "test" if learns_classes else "clustering"
    other = ("clustering", "clustering_test") if learns_classes else ("train", "test")
    if score and group in other and not own:
        learns = "classes" if learns_classes else "clusters"
        raise ConfigError(
            f"objective={objective}: the method learns {learns}, so trials have no such score; "
            f"take {fitting}/acc, or {LABEL_FREE}/selection, which needs no labels."
        )
    if score and group == fitting == "clustering" and score not in SCORES:
        raise ConfigError(f"objective={objective}: {one_of(score, SCORES)}")


class _Search:
    """The trials of a search, which Ray Tune reports on.

    Args:
        check: Raises to stop; every trial then stops after a checkpoint.
    """

    def __init__(
        self, options: TuneConfig, study: Study, view: StudyView, check: Callable[[], None]
    ) -> None:
        self._options, self._view, self._check = options, view, check
        self._runs = {run.variant.label: run for run in study.runs}
        self._file = study.folder / "stopped.json"
        self._stopped = self._read_stopped()
        self._failed: dict[str, RunRecord] = {}
        self._without: RunRecord | None = None
        self._began: dict[str, float] = {}
        self._now: dict[str, str] = {}
        self._todo = [
            label
            for label, run in self._runs.items()
            if label not in self._stopped and not run.record().completed
        ]

    def run(self) -> None:
        """Run the trials that have neither completed nor been stopped."""
        self._view.begin(len(self._runs), len(self._todo))
        if not self._todo:
            return
        options, configs = self._options, [self._runs[label].config for label in self._todo]
        cluster = configs[0].cluster
        with ray_for_trials(cluster):
            wanted = need(configs[0], capacity(cluster))
            gpu = cluster.backend == "serial" and wanted["GPU"] >= 1
            history = {
                label: [
                    Report(round=round_, value=value)
                    for round_, value in read_objective(run.folder, options.objective)
                ]
                for label, run in self._runs.items()
            }
            orders = {
                label: self._order(self._runs[label], history[label], gpu=gpu)
                for label in self._todo
            }
            run_trials(
                self._todo,
                partial(begin, orders),
                self,
                lower=options.lower,
                grace=self._grace(configs[0]),
                reduction=options.reduction,
                history=history,
                parallel=self._parallel(configs),
                gpu=gpu,
            )
        self._check_objective()

    def started(self, name: str) -> None:
        self._began.setdefault(name, time.monotonic())
        self._now[name] = "starting"
        self._view.started(name)

    def reported(self, name: str, report: Report) -> None:
        """Note that a trial has reported; the last report has an exit code."""
        value = "" if report.value is None else f": {self._options.objective} {report.value:.4f}"
        self._now[name] = f"round {report.round}{value}"
        if report.code is None:
            return
        record = self._runs[name].record_after(report.code, report.reason)
        if not record.completed:
            self._failed[name] = record
        self._end(name, record)
        if record.completed and report.value is None:
            self._without = record

    def _check_objective(self) -> None:
        """Raise if a trial has completed without the objective, as then all others will."""
        if self._without is None:
            return
        scores = self._without.scores
        close = nearest(self._options.objective, scores)
        meant = f"did you mean {close}?" if close else f"give one of {listed(scores)}."
        raise ConfigError(
            f"objective={self._options.objective}: a trial has completed without such a score; "
            f"{meant}"
        )

    def stopped(self, name: str, round_: int) -> None:
        """Note that ASHA stops a trial after this round, which may have been its last."""
        record = self._runs[name].record()
        if record.completed:
            self._end(name, record)
            return
        self._stopped[name] = round_
        known = {"objective": self._options.objective, "rounds": self._stopped}
        write_text_atomically(self._file, json.dumps(known, indent=2) + "\n")
        self._end(name, replace(record, status="stopped"))

    def step(self) -> None:
        self._check()
        self._check_objective()
        self._view.running(self._now, len(self._todo) - len(self._began))

    def wait(self) -> None:
        """Wait until no trial's process writes any more."""
        while any(is_claimed(run.folder) for run in self._runs.values()):
            time.sleep(_POLL_S)

    def records(self) -> list[RunRecord]:
        return [self._record(label) for label in self._runs]

    def _record(self, label: str) -> RunRecord:
        record = self._failed.get(label) or self._runs[label].record()
        given_up = label in self._stopped and not record.completed
        return replace(record, status="stopped", error="") if given_up else record

    def _end(self, name: str, record: RunRecord) -> None:
        self._now.pop(name, None)
        self._view.ended(name, record, time.monotonic() - self._began[name])

    def _read_stopped(self) -> dict[str, int]:
        """Return the trials that were stopped earlier by this objective, with their rounds."""
        if not self._file.is_file():
            return {}
        try:
            known = read_json(self._file)
            rounds = {str(trial): int(round_) for trial, round_ in known["rounds"].items()}
            return rounds if known["objective"] == self._options.objective else {}
        except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            raise DataError(
                f"{self._file}: it does not say which trials were stopped ({reason(error)}); "
                "remove it, and they are trained again."
            ) from error

    def _order(self, run: PlannedRun, history: Sequence[Report], *, gpu: bool) -> TrialOrder:
        return TrialOrder(
            command=run.command,
            here=Path.cwd(),
            folder=run.folder,
            log=run.log,
            objective=self._options.objective,
            after=history[-1].round if history else -1,
            environment=dict(os.environ),
            gpu=gpu,
        )

    def _grace(self, config: RunConfig) -> int | None:
        if not self._options.early_stopping:
            return None
        return self._options.grace or max(config.evaluation.every, 1)

    def _parallel(self, configs: Sequence[RunConfig]) -> int:
        """Return how many of these runs the resources allow at once."""
        resources = RunResources(self._options.parallel)
        return sum(takewhile(bool, (resources.take(*item) for item in enumerate(configs))))


def _table(
    options: TuneConfig, drawn: Sequence[Point], records: Sequence[RunRecord], *, blind: bool
) -> TuneTable:
    found = [
        TrialResult(point, record, options.objective)
        for point, record in zip(drawn, records, strict=True)
    ]
    return TuneTable.of(found, options.objective, lower=options.lower, blind=blind)


def _blind(options: TuneConfig, configs: Mapping[Variant, RunConfig]) -> bool:
    """Return whether the objective needs no labels: a label-free score or loss."""
    if options.objective != "loss":
        return options.objective.partition("/")[0] == UNSUPERVISED
    return not any(
        load_target(target_of(config.method)).needs_labels for config in configs.values()
    )


def _report(table: TuneTable, study: Study) -> list[Path]:
    """Write `trials.csv` and `figures/objective.png`, and return the files worth opening."""
    path = study.folder / "trials.csv"
    write_text_atomically(path, table.csv())
    records = [trial.record for trial in table.trials]
    curves = {record.label: points(record, table.objective, ROUND) for record in records}
    lines = {label: (curve, None) for label, curve in curves.items() if curve.shape[1]}
    if not lines:
        return [path]
    note = "lines that end early: stopped" if any(r.status == "stopped" for r in records) else ""
    figure = study.folder / "figures" / "objective.png"
    text = about(run.config for run in study.runs)
    files = [path]
    with guarded(figure, _log.warning):
        files.append(comparison_figure({table.objective: lines}, ROUND, figure, note, text))
    return files
