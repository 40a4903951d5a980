"""A table or figure of a paper as a study: what is run, at three scales, and what was printed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, model_validator

from coterie.commands.compose import STUDIES, config_dir
from coterie.config.component import Component
from coterie.config.explain import not_among, one_of
from coterie.config.loading import load_component
from coterie.config.plain_files import read_yaml
from coterie.errors import ConfigError
from coterie.studies.plan import Variant

ScaleName = Literal["smoke", "cpu", "paper"]
SCALES: tuple[ScaleName, ...] = ("smoke", "cpu", "paper")
_Names = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
_Pair = Annotated[tuple[str, str], Field(strict=False)]
_Numbers = Annotated[tuple[float | None, ...], Field(strict=False)]


def _named(given: Any) -> Any:
    """Turn a list of names into a mapping of each name to no overrides."""
    return {str(name): "" for name in given} if isinstance(given, list | tuple) else given


def _of_each(scale: Any, each: Mapping[str, Any]) -> Any:
    """Return a scale in which the overrides of a mean's row apply to each of its rows."""
    if not isinstance(scale, dict) or not isinstance(given := scale.get("rows"), dict):
        return scale
    found = {row: text for row, text in given.items() if row not in each}
    for row, text in given.items():
        names = [f"{row}, {end}" for end in each.get(row, {})]
        found |= {name: text for name in names if name not in given}
    return {**scale, "rows": found}


class Scale(Component):
    """One size of a study. Overrides are separated by blanks, as on a command line."""

    budget: str
    """What each run has, and what replaces parts that are unavailable, in a few words."""
    takes: str
    """How long all runs take on the machine that the scale is meant for."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(strict=False, min_length=1)] = (0,)
    """Each cell is run once with each seed."""
    noise: NonNegativeFloat = 0.0
    """Differences up to this size are undecided, whatever the seeds' spread."""
    overrides: str = ""
    """Overrides of every run at this scale."""
    columns: Annotated[Mapping[str, str], BeforeValidator(_named)] = {}
    """The columns that are run, as a list or with additional overrides; by default all."""
    instead: Mapping[str, str] = {}
    """What is run in place of a column, such as `Fashion-MNIST`, by column."""
    rows: Mapping[str, str | None] = {}
    """Additional overrides of rows; null for a row that is not run at this scale."""
    prepare: Mapping[str, str | Mapping[str, str]] = {}
    """Runs that come first, one for all columns or one for each, with the names by which rows refer
    to their folders, as in `encoder.path={name}`."""


class Claim(Component):
    """A sentence of the paper about two cells."""

    says: str
    """The sentence."""
    more: _Pair
    """Row and column of the cell that has the higher number."""
    less: _Pair
    """Row and column of the other cell."""
    metric: str | None = None
    """The metric's title; by default the study's first."""


class Correlation(Component):
    """A correlation of two metrics over all runs, which the paper prints."""

    of: _Pair
    """The metrics' titles."""
    printed: float
    """Pearson's r in the paper."""


class PaperStudy(Component):
    """A table or figure of a paper. Overrides are separated by blanks, as on a command line."""

    about: str
    """What the study shows, in one sentence."""
    paper: str
    """Paper and table, such as `CCFC, table 1`."""
    page: str
    """The page of docs/results with this study."""
    metrics: Annotated[Mapping[str, str], Field(min_length=1)]
    """Titles of the metrics with their names in a run's summary; signs compare the first one."""
    reference: str
    """The row that is compared with each other row."""
    leads: Literal["higher", "lower"] | None = None
    """How the reference compares with the other rows, by the paper's words, where it prints no
    numbers."""
    overrides: str = ""
    """Overrides of every run."""
    rows: Mapping[str, str | None]
    """Rows with the experiment and overrides that define them; null for rows that are only
    printed."""
    columns: Annotated[Mapping[str, str], Field(min_length=1)]
    """The paper's columns with their overrides."""
    each: Mapping[str, Annotated[Mapping[str, str], Field(min_length=1)]] = {}
    """Rows that are means over other rows, such as one client alone over all clients: for each of
    these, the end of its name, and its overrides, which follow those of the row."""
    only: Mapping[str, _Names] = {}
    """Rows that are run in some columns only."""
    printed: Mapping[str, Mapping[str, _Numbers]] = {}
    """What the paper prints: metric, row, and a number or null for each column."""
    correlation: Correlation | None = None
    """A correlation of two metrics over all runs."""
    counted: str | None = None
    """The metric for which the page counts how often each row is a column's best, as the paper
    does."""
    scales: Mapping[ScaleName, Scale]
    """`smoke`: a minute on two cores; `cpu`: hours on two cores; `paper`: the paper's sizes."""
    notes: Annotated[tuple[str, ...], Field(strict=False, max_length=5)] = ()
    """What differs from the paper."""
    claims: Annotated[tuple[Claim, ...], Field(strict=False)] = ()
    """The paper's claims about single cells, for the page of all claims."""

    @model_validator(mode="before")
    @classmethod
    def _with_rows_of_means(cls, values: Any) -> Any:
        """Put the rows of `each` after the row that is their mean."""
        parts = [values.get(key) for key in ("each", "rows", "scales")]
        if not all(isinstance(part, dict) and part for part in parts):
            return values
        (each, rows, scales), found = parts, dict[str, str | None]()
        for row, text in rows.items():
            ends = each.get(row, {})
            found[row] = None if ends else text
            found |= {f"{row}, {end}": f"{text or ''} {own}" for end, own in ends.items()}
        scaled = {name: _of_each(scale, each) for name, scale in scales.items()}
        return {**values, "rows": found, "scales": scaled}

    @model_validator(mode="after")
    def _all_named(self) -> Self:
        """Refuse unknown names, and rows of different lengths."""
        if missing := [name for name in SCALES if name not in self.scales]:
            raise ValueError(f"the scale {missing[0]} is missing")
        for scale in self.scales.values():
            self._check("column", [*scale.columns, *scale.instead], self.columns)
            self._check("row", scale.rows, self.rows)
        self._check("row", [self.reference, *self.only, *self.each], self.rows)
        self._check(
            "column", [name for names in self.only.values() for name in names], self.columns
        )
        related = [] if self.correlation is None else self.correlation.of
        compared = [self.counted, *(claim.metric for claim in self.claims)]
        titles = [*self.printed, *related, *filter(None, compared)]
        self._check("metric", titles, self.metrics)
        for row, column in (pair for claim in self.claims for pair in (claim.more, claim.less)):
            self._check("row", [row], self.rows)
            self._check("column", [column], self.columns)
        for printed in self.printed.values():
            self._check("row", printed, self.rows)
            if wrong := [row for row in printed if len(printed[row]) != len(self.columns)]:
                raise ValueError(f"{wrong[0]} has more or fewer printed numbers than columns")
        return self

    @property
    def means(self) -> dict[str, list[str]]:
        """The rows that are means, each with the rows that it averages."""
        return {row: [f"{row}, {end}" for end in ends] for row, ends in self.each.items()}

    @staticmethod
    def _check(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
        for name in names:
            if name not in known:
                raise ValueError(f"there is no {kind} {name}; it {one_of(name, known)}")

    def number(self, metric: str, row: str, column: str) -> float | None:
        """Return the number that the paper prints in a cell; None if there is none."""
        numbers = self.printed.get(metric, {}).get(row)
        return None if numbers is None else numbers[list(self.columns).index(column)]


@dataclass(frozen=True)
class Cell:
    """A place in a study's table."""

    row: str
    column: str

    @property
    def label(self) -> str:
        """The label of the cell's runs."""
        return f"{self.row}, {self.column}"


def studies() -> dict[str, Path]:
    """Return the file of every study, by name, sorted."""
    return {path.stem: path for path in sorted((config_dir() / STUDIES).glob("*.yaml"))}


def read_study(name: str) -> PaperStudy:
    """Read a study's YAML.

    Raises:
        ConfigError: If there is no such study, or its YAML is none.
    """
    known = studies()
    if name not in known:
        why = not_among("study", name, known, "coterie study")
        raise ConfigError(f"study={name}: {why}")
    try:
        values = read_yaml(known[name])
    except ValueError as error:
        raise ConfigError(f"{known[name]}: {error}.") from error
    return load_component(PaperStudy, values, f"{name}.")


def prepared_variants(
    study: PaperStudy, scale: ScaleName, more: Iterable[str] = ()
) -> dict[str, Variant]:
    """Return the preparatory runs of a study, by label."""
    found = {}
    for name, text in study.scales[scale].prepare.items():
        texts = (
            {name: text} if isinstance(text, str) else {f"{name}, {c}": t for c, t in text.items()}
        )
        for label, own in (texts or {name: str(text)}).items():
            found[label] = _variant(label, [study.overrides, own], more)
    return found


def cell_variants(
    study: PaperStudy,
    scale: ScaleName,
    more: Iterable[str] = (),
    folders: Mapping[str, Path] | None = None,
) -> dict[Variant, Cell]:
    """Return the runs of a study's cells, column by column.

    `folders` are those of the prepared runs by label; None leaves out what names them, and so
    checks the rest before they exist.
    """
    at, found = study.scales[scale], {}
    for column, own in (at.columns or dict.fromkeys(study.columns, "")).items():
        for row, text in study.rows.items():
            extra = at.rows.get(row, "")
            if text is None or extra is None or column not in study.only.get(row, study.columns):
                continue
            cell = Cell(row, column)
            texts = [study.overrides, study.columns[column], at.overrides, own, text, extra]
            variant = _variant(cell.label, texts, more)
            found[_prepared(variant, at, column, folders)] = cell
    return found


def _variant(label: str, texts: Iterable[str], more: Iterable[str]) -> Variant:
    """Return a variant from overrides, one of which is `experiment=`."""
    words = [word for text in texts for word in text.split()]
    names = [word.partition("=")[2] for word in words if word.startswith("experiment=")]
    if not names:
        raise ConfigError(f"{label}: it has no experiment; give experiment=NAME in its row.")
    own = [word for word in words if not word.startswith("experiment=")]
    return Variant(label, names[-1], (*own, *more))


def _prepared(
    variant: Variant, scale: Scale, column: str, folders: Mapping[str, Path] | None
) -> Variant:
    """Return the variant with the folders of prepared runs in place of their names."""
    named = [name for name in scale.prepare if any(f"{{{name}}}" in o for o in variant.overrides)]
    if not named:
        return variant
    if folders is None:
        kept = [text for text in variant.overrides if not text.startswith("encoder")]
        return Variant(variant.label, variant.experiment, tuple(kept))
    overrides = list(variant.overrides)
    for name in named:
        label = name if isinstance(scale.prepare[name], str) else f"{name}, {column}"
        folder = str(folders[label]).replace("'", "\\'")
        overrides = [text.replace(f"{{{name}}}", f"'{folder}'") for text in overrides]
    return Variant(variant.label, variant.experiment, tuple(overrides))
