"""The tables of docs/results, written from the files of results between markers of the pages."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import DataError
from coterie.studies.comparison_table import Spread
from coterie.studies.order import Measured, sign
from coterie.studies.paper_study import Cell, Claim, PaperStudy, ScaleName, read_study, studies
from coterie.studies.results_file import Result, read_results

_SHOWN: tuple[ScaleName, ...] = ("paper", "cpu")
"""Scales whose results are shown, the most telling first."""
_CLAIMS = "claims"
_BLOCK = re.compile(r"<!-- study (\w+) -->\n.*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True)
class Measurement:
    """A study's results at one scale.

    Attributes:
        name: The study's name.
        study: The study.
        scale: The scale.
        results: The results; none if it was not run.
    """

    name: str
    study: PaperStudy
    scale: ScaleName
    results: tuple[Result, ...]

    @property
    def command(self) -> str:
        """The command that runs it."""
        return f"python -m ray_jobs.study study={self.name} scale={self.scale}"

    @property
    def noise(self) -> float:
        """The least difference that counts."""
        return self.study.scales[self.scale].noise

    def number(self, metric: str, cell: Cell) -> Measured | None:
        """A cell's number over its seeds, by the metric's title."""
        name = self.study.metrics[metric]
        values = [r.numbers[name] for r in self.results if r.cell == cell and name in r.numbers]
        spread = Spread.of(values)
        return Measured(spread, len(values)) if spread else None

    def sign(self, metric: str, cell: Cell) -> str:
        """Whether the reference stands to this row as in the paper: a word, or a dash."""
        reference = Cell(self.study.reference, cell.column)
        expected = self._expected(metric, cell)
        here, there = self.number(metric, reference), self.number(metric, cell)
        if cell == reference or here is None or there is None or not expected:
            return "–"
        return sign(here, there, expected, self.noise)

    def _expected(self, metric: str, cell: Cell) -> float | None:
        """The paper's reference less its row, or a number of that sign; None if it says nothing."""
        own = self.study.number(metric, self.study.reference, cell.column)
        other = self.study.number(metric, cell.row, cell.column)
        if own is not None and other is not None:
            return own - other
        if self.study.leads is None or metric != next(iter(self.study.metrics)):
            return None
        return 1.0 if self.study.leads == "higher" else -1.0


def measurements(docs: Path) -> dict[str, list[Measurement]]:
    """Every study by name, with what was measured at the scales that are shown.

    Args:
        docs: The folder with `results/data`.
    """
    found = {}
    for name in studies():
        study = read_study(name)
        found[name] = [
            Measurement(name, study, scale, read_results(_file(docs, name, scale)))
            for scale in _SHOWN
        ]
    return found


def written_pages(docs: Path) -> dict[Path, str]:
    """The pages that have markers, as they have to be.

    Args:
        docs: The folder of the pages, with `results.md`, `results/` and `results/data`.

    Raises:
        DataError: If a study has no place on its page, or a page names a study that is none.
    """
    found = measurements(docs)
    pages = {path: path.read_text(encoding="utf-8") for path in (docs / "results").glob("*.md")}
    for name, measured in found.items():
        page = docs / "results" / f"{measured[0].study.page}.md"
        if f"<!-- study {name} -->" not in pages.get(page, ""):
            raise DataError(f"{page}: add `<!-- study {name} -->` and `<!-- end -->`.")
    texts = {path: _BLOCK.sub(lambda m: _block(found, m[1]), text) for path, text in pages.items()}
    claims = docs / "results.md"
    text = claims.read_text(encoding="utf-8")
    texts[claims] = re.sub(
        rf"<!-- {_CLAIMS} -->\n.*?<!-- end -->",
        lambda _: f"<!-- {_CLAIMS} -->\n\n{_claims(found.values())}\n\n<!-- end -->",
        text,
        flags=re.DOTALL,
    )
    return texts


def _file(docs: Path, name: str, scale: ScaleName) -> Path:
    return docs / "results" / "data" / f"{name}-{scale}.csv"


def _block(found: Mapping[str, list[Measurement]], name: str) -> str:
    if name not in found:
        raise DataError(f"<!-- study {name} -->: there is no such study; remove the marker.")
    study = found[name][0].study
    shown = [part for part in found[name] if part.results]
    parts = [f"## {study.paper}", study.about]
    for part in shown:
        parts += _measured(part)
    if not shown:
        cpu = found[name][-1]
        parts.append(f"Not run: `{cpu.command}` takes {study.scales['cpu'].takes}.")
    parts += ["\n".join(f"- {note}" for note in study.notes)] if study.notes and shown else []
    body = "\n\n".join(parts)
    return f"<!-- study {name} -->\n\n{body}\n\n<!-- end -->"


def _measured(part: Measurement) -> Iterator[str]:
    """The paragraphs of a scale: budget, command, table, origin."""
    scale = part.study.scales[part.scale]
    counts = sorted({r.seed for r in part.results})
    seeds = f"seed{'s' * (len(counts) > 1)} {', '.join(map(str, counts))}"
    noise = f" Differences up to {scale.noise:g} are undecided." if scale.noise else ""
    yield f"Scale `{part.scale}`, {seeds}: {scale.budget}.{noise}"
    yield f"```bash\n{part.command}\n```"
    yield _table(part)
    commits = ", ".join(dict.fromkeys(result.commit for result in part.results))
    devices = "; ".join(dict.fromkeys(result.device for result in part.results))
    file = f"{part.name}-{part.scale}.csv"
    yield f"Every run: [{file}](data/{file}), by {commits} on {devices}."


def _table(part: Measurement) -> str:
    """A line for each cell that was run or printed, in columns of which something was run."""
    study, instead = part.study, part.study.scales[part.scale].instead
    titles = [title for metric in study.metrics for title in _heads(study, metric)]
    lines = [["column", "row", "seeds", *titles]]
    lines.append(["---"] * len(lines[0]))
    for column in study.columns:
        if not any(result.cell.column == column for result in part.results):
            continue
        place = f"{column} (here {instead[column]})" if column in instead else column
        for row in study.rows:
            cells = list(_cells(part, Cell(row, column)))
            seeds = len({r.seed for r in part.results if r.cell == Cell(row, column)})
            if seeds or any(text != "–" for text in cells):
                lines.append([place, row, str(seeds) if seeds else "–", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _heads(study: PaperStudy, metric: str) -> list[str]:
    """The heads of a metric's columns: the paper's and the sign only where the paper says it."""
    printed = ["paper"] * (metric in study.printed)
    signed = metric in study.printed or (study.leads and metric == next(iter(study.metrics)))
    return [metric, *printed, *["sign"] * bool(signed)]


def _cells(part: Measurement, cell: Cell) -> Iterator[str]:
    """For each metric: here, in the paper, and the sign."""
    for metric in part.study.metrics:
        _, *more = _heads(part.study, metric)
        yield number_text(part.number(metric, cell))
        if "paper" in more:
            yield _printed(part.study.number(metric, cell.row, cell.column))
        if "sign" in more:
            yield part.sign(metric, cell)


def number_text(here: Measured | None) -> str:
    """A measured number: `0.929 ± 0.012`, or a dash."""
    if here is None:
        return "–"
    spread = here.spread
    more = "" if spread.deviation is None else f" ± {_short(spread.deviation)}"
    return f"{_short(spread.mean)}{more}"


def _printed(number: float | None) -> str:
    """A number as the paper prints it."""
    return "–" if number is None else f"{number:.4g}"


def _short(number: float) -> str:
    return f"{number:.3f}" if abs(number) < 1000 else f"{number:,.0f}"


def _claims(found: Iterable[list[Measurement]]) -> str:
    """A line for each claim of which both cells were measured, at the most telling scale."""
    lines = [["claim", "paper", "here", "holds?", "details"]]
    lines.append(["---"] * len(lines[0]))
    for parts in found:
        for claim in parts[0].study.claims:
            line = next(filter(None, (_claim(part, claim) for part in parts)), None)
            lines += [line] if line else []
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _claim(part: Measurement, claim: Claim) -> list[str] | None:
    """A claim's line; None if one of its cells was not measured."""
    study, metric = part.study, claim.metric or next(iter(part.study.metrics))
    cells = [Cell(*claim.more), Cell(*claim.less)]
    more, less = (part.number(metric, cell) for cell in cells)
    if more is None or less is None:
        return None
    printed = [study.number(metric, cell.row, cell.column) for cell in cells]
    paper = " against ".join(map(_printed, printed))
    if printed == [None, None]:
        paper = "in words"
    data = {study.scales[part.scale].instead.get(cell.column, "") for cell in cells} - {""}
    where = f"{', '.join(sorted(data))}: " if data else ""
    here = f"{where}{metric} {number_text(more)} against {number_text(less)}"
    slug = re.sub(r"[^\w -]", "", study.paper.lower()).replace(" ", "-")
    link = f"[{study.paper}](results/{study.page}.md#{slug})"
    return [claim.says, paper, here, sign(more, less, 1.0, part.noise), link]
