"""Run a study of a paper at one scale, as a comparison, and keep its results."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from coterie.commands.changed_config import load_stored
from coterie.config.schema import RunConfig
from coterie.errors import InterruptedRunError
from coterie.models.pretrained_encoder import Pretrained
from coterie.run.pretraining_relevance import pretraining_relevance
from coterie.studies.comparison import run_comparison
from coterie.studies.curves import from_rounds
from coterie.studies.paper_plan import RELEVANCE, StudyPlan
from coterie.studies.paper_study import Cell
from coterie.studies.plan import variant_configs
from coterie.studies.results_file import Result, add_results, config_digest
from coterie.studies.study import exit_code
from coterie.studies.study_view import StudyView
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.run_records import RunRecord

_RELEVANCE_SAMPLES = 300
"""As in CP-CFL, section 4.3."""
_SECONDS = ("seconds/training", "seconds/total")
"""The wall-clock times of a run that a result keeps."""


def run_study(plan: StudyPlan) -> int:
    """Run what has not completed, and write the results as runs end.

    Raises:
        ConfigError: If a config is refused, or a folder cannot be used.
        InterruptedRunError: If a signal stopped the runs.
    """
    if plan.scale == "smoke":
        StudyView().note(
            "scale=smoke tries whether the study runs: its data are few samples, often of another "
            "data set than the column says, so its numbers mean nothing."
        )
    try:
        code = _prepare(plan)
        return code if code == 1 else _run_cells(plan) or code
    except InterruptedRunError as error:
        raise InterruptedRunError("The runs have stopped; go on with the same command.") from error


def _prepare(plan: StudyPlan) -> int:
    """Train the preparatory runs, which the cells start from."""
    if not plan.prepared:
        return 0
    configs = variant_configs(tuple(plan.prepared.values()), 0)
    return exit_code(run_comparison(plan.options("prepared", (0,)), configs, StudyView()))


def relevance(config: RunConfig) -> dict[str, float]:
    """Return the relevance of the pretraining data to a run's clients; {} without pretraining."""
    encoder = config.encoder
    if not isinstance(encoder, Pretrained):
        return {}
    earlier = load_stored(RunDirectory.open(encoder.path, key="encoder.path"), config.trust)
    found = pretraining_relevance(encoder.path, earlier, config, _RELEVANCE_SAMPLES)
    return {RELEVANCE: found}


def _run_cells(plan: StudyPlan) -> int:
    seeds = plan.seeds
    cells = plan.cells(plan.folders)
    configs = variant_configs(tuple(cells), seeds[0])
    known = {variant.label: (cell, configs[variant]) for variant, cell in cells.items()}
    kept = _Kept(plan.file, known, plan.study.metrics.values())
    records = run_comparison(plan.options("cells", seeds), configs, kept)
    kept.keep(records)
    return exit_code(records)


class _Kept(StudyView):
    """A view that also writes the result of each run when it has ended."""

    def __init__(
        self,
        file: Path,
        known: Mapping[str, tuple[Cell, RunConfig]],
        metrics: Iterable[str],
    ) -> None:
        super().__init__()
        self._file, self._known, self._metrics = file, known, tuple(metrics)
        self._relevance: dict[tuple[str, int], dict[str, float]] = {}

    def keep(self, records: Sequence[RunRecord]) -> None:
        """Add the results of completed runs to the file."""
        add_results(self._file, [self._result(record) for record in records if record.completed])

    def _result(self, record: RunRecord) -> Result:
        cell, config = self._known[record.label]
        seeded = config.model_copy(update={"seed": record.seed})
        kept = {n: number for n, number in record.numbers.items() if not n.startswith("seconds/")}
        kept |= {name: record.numbers[name] for name in _SECONDS if name in record.numbers}
        reached = {name: from_rounds(record, name) for name in self._metrics}
        kept |= {name: place for name, place in reached.items() if place is not None}
        if RELEVANCE in self._metrics:
            key = record.label, record.seed
            if key not in self._relevance:
                self._relevance[key] = relevance(seeded)
            kept |= self._relevance[key]
        return Result(cell, record.seed, kept, record.commit, record.device, config_digest(seeded))

    def ended(self, name: str, record: RunRecord, seconds: float) -> None:
        """Add the run's result to the file, and show how its process has ended."""
        self.keep([record])
        super().ended(name, record, seconds)

    def finish(self, table: Table | None, texts: Sequence[str], outputs: Sequence[Path]) -> None:
        """Show the table, sentences and the files worth opening, the results' own among them."""
        super().finish(table, texts, [*outputs, self._file])
