"""The plan of a paper's study at one scale, from its command line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from coterie.commands.arguments import read_values, separate
from coterie.config.component import Component, NotEmpty
from coterie.config.explain import one_of, show
from coterie.config.loading import load_component
from coterie.errors import ConfigError
from coterie.studies.paper_study import (
    SCALES,
    Cell,
    ScaleName,
    cell_variants,
    prepared_variants,
    read_study,
)
from coterie.studies.plan import CompareConfig, Variant, variant_configs
from coterie.studies.results_file import read_results
from coterie.tracking.paths import (
    check_replaceable,
    default_root,
    local_path,
    make_writable,
)

_Names = Annotated[tuple[str, ...], Field(strict=False)]
_INSTEAD = {
    "experiment": "choose rows=[NAME,…]",
    "run_dir": "give out=DIR",
    "seed": "give seeds=[0,1,2]",
    "resume": "leave it out",
}
"""Keys of a single run that a study sets, with what to do instead."""

RELEVANCE = "relevance"
"""The name among a study's metrics for the relevance of an encoder's pretraining data."""


class StudyConfig(Component):
    """Which study to run, and where to write it."""

    study: str | None = None
    """The study; by default all studies are listed."""
    scale: str = "cpu"
    """`smoke`: a minute on two cores; `cpu`: hours on two cores; `paper`: the paper's sizes."""
    rows: _Names = ()
    """Rows to run, such as [CCFC,k-FED]; by default all."""
    columns: _Names = ()
    """Columns to run, such as ['MNIST p=0']; by default all of the scale."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(strict=False)] = ()
    """Seeds to run, such as [0]; by default those of the scale."""
    out: NotEmpty | None = None
    """Folder of the runs, which the same command resumes; by default
    `<$COTERIE_RUNS or runs>/study/<study>-<scale>`."""
    results: NotEmpty | None = None
    """Folder of the file of results, `<study>-<scale>.csv`; by default `out`."""
    parallel: PositiveInt | Literal["auto"] = "auto"
    """Runs at a time; `auto`: as many as the CPUs and GPUs hold."""


class StudyPlan:
    """A study at one scale, ready to be run.

    Args:
        more: Overrides of every run, which come last.

    Raises:
        ConfigError: If there is no such study, scale, row or column.
    """

    def __init__(self, options: StudyConfig, more: Sequence[str] = ()) -> None:
        self._options, self._more = options, tuple(more)
        self.study = read_study(options.study or "")
        self.scale = _scale(options.scale)
        for key, given, known in (
            ("rows", options.rows, self.study.rows),
            (
                "columns",
                options.columns,
                self.study.scales[self.scale].columns or self.study.columns,
            ),
        ):
            for name in given:
                if name not in known:
                    raise ConfigError(f"{key}=[{name}]: {one_of(name, known)}")
        name = f"{options.study}-{self.scale}"
        default = default_root(job=False) / "study" / name
        self.folder = local_path("out", options.out).absolute() if options.out else default
        kept = local_path("results", options.results) if options.results else self.folder
        self.file = kept.absolute() / f"{name}.csv"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of each cell."""
        return self._options.seeds or self.study.scales[self.scale].seeds

    @property
    def prepared(self) -> dict[str, Variant]:
        """The preparatory runs, by label, that the chosen cells start from."""
        every = self._every
        cells = self.cells({label: Path(label) for label in every})
        used = [override for variant in cells for override in variant.overrides]
        return {
            label: variant
            for label, variant in every.items()
            if any(f"'{label}'" in override for override in used)
        }

    @property
    def folders(self) -> dict[str, Path]:
        """The folder of every preparatory run of the study, by label."""
        runs = self.folder / "prepared" / "runs"
        return {label: runs / f"{v.folder},seed=0" for label, v in self._every.items()}

    @property
    def _every(self) -> dict[str, Variant]:
        return prepared_variants(self.study, self.scale, self._more)

    def cells(self, folders: Mapping[str, Path] | None) -> dict[Variant, Cell]:
        """Return the variant of each chosen cell; see `cell_variants`."""
        found = cell_variants(self.study, self.scale, self._more, folders)
        rows, columns = self._options.rows, self._options.columns
        chosen = {
            variant: cell
            for variant, cell in found.items()
            if cell.row in (rows or (cell.row,)) and cell.column in (columns or (cell.column,))
        }
        if not chosen:
            raise ConfigError(
                f"rows={show(rows)} columns={show(columns)}: nothing is run there at this scale; "
                "choose others."
            )
        return chosen

    def check(self) -> None:
        """Check the config of every run, and the file of results, before the first run begins.

        Raises:
            ConfigError: At the first config that is refused, or if the file of results cannot be
                written.
            DataError: If the file is none of results.
        """
        if self._options.results is not None:
            make_writable("results", self.file.parent)
            check_replaceable("results", self.file)
        read_results(self.file)
        variant_configs(tuple(self.prepared.values()), 0)
        variant_configs(tuple(self.cells(None)), self.seeds[0])

    @property
    def _columns(self) -> tuple[str, ...]:
        """The metrics that are in a run's summary."""
        names = self.study.metrics.values()
        return tuple(name for name in names if " " not in name and name != RELEVANCE)

    def options(self, part: Literal["prepared", "cells"], seeds: tuple[int, ...]) -> CompareConfig:
        """Return the options of the comparison of the cells, or of the `prepared` runs."""
        return CompareConfig(
            seeds=seeds,
            out=str(self.folder / part),
            resume=True,
            parallel=self._options.parallel,
            metrics=self._columns if part == "cells" else (),
            axes=("round",),
        )


def read_study_plan(arguments: Sequence[str]) -> StudyPlan:
    """Read the command line of a study."""
    own, more = separate(arguments, set(StudyConfig.model_fields))
    for text in more:
        key = text.partition("=")[0].lstrip("+~")
        if key in _INSTEAD:
            raise ConfigError(f"{text}: a study sets it itself; {_INSTEAD[key]}.")
    return StudyPlan(load_component(StudyConfig, read_values(own)), more)


def _scale(name: str) -> ScaleName:
    for known in SCALES:
        if name == known:
            return known
    raise ConfigError(f"scale={name}: {one_of(name, SCALES)}")
