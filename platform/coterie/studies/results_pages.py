"""The tables of docs/results, written between markers of the pages from the files of results."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from coterie.errors import DataError
from coterie.studies.findings import findings_texts
from coterie.studies.measurement import Measurement, measurements, number_text, printed_text
from coterie.studies.paper_study import Cell, PaperStudy
from coterie.studies.results_claims import claims_table

_INNER = r"\n(?:(?!<!-- ).)*<!-- end -->"
"""The text between two markers, up to the next marker."""
_BLOCK = re.compile(rf"<!-- study (\w+) -->{_INNER}", re.DOTALL)
_NAMED = re.compile(rf"<!-- (claims|findings) -->{_INNER}", re.DOTALL)


def written_pages(docs: Path) -> dict[Path, str]:
    """Return the pages that have markers, with all tables up to date.

    Args:
        docs: The folder of the pages, with `results.md`, `results/` and `results/data`.

    Raises:
        DataError: If a study has no place on its page, or a page names a study that is none.
    """
    found = measurements(docs)
    pages = {path: path.read_text(encoding="utf-8") for path in (docs / "results").glob("*.md")}
    for name, measured in found.items():
        page = docs / "results" / f"{measured[0].study.page}.md"
        if name not in _BLOCK.findall(pages.get(page, "")):
            raise DataError(f"{page}: add `<!-- study {name} -->` and `<!-- end -->`.")
    texts = {path: _BLOCK.sub(lambda m: _block(found, m[1]), text) for path, text in pages.items()}
    claims = docs / "results.md"
    texts[claims] = claims.read_text(encoding="utf-8")
    own = findings_texts(docs / "results" / "data" / "findings.csv")
    for path, text in texts.items():
        made = {"claims": claims_table(found.values()), "findings": own.get(path.stem, "")}
        texts[path] = _named(text, made)
    return texts


def _named(text: str, made: Mapping[str, str]) -> str:
    """Return a page with new texts between the markers of these names."""
    return _NAMED.sub(lambda match: _marked(match[1], made[match[1]]), text)


def _marked(name: str, text: str) -> str:
    return f"<!-- {name} -->\n\n{text}\n\n<!-- end -->"


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
    return _marked(f"study {name}", body)


def _measured(part: Measurement) -> Iterator[str]:
    """Return the paragraphs of a scale: budget, command, table, origin."""
    scale = part.study.scales[part.scale]
    seeds = f"seed{'s' * (len(part.seeds) > 1)} {', '.join(map(str, part.seeds))}"
    noise = f" Differences up to {scale.noise:g} are undecided." if scale.noise else ""
    yield f"Scale `{part.scale}`, {seeds}: {scale.budget}.{noise}"
    yield f"```bash\n{part.command}\n```"
    yield _table(part)
    if found := part.correlation():
        yield _correlation(part.study, *found)
    if part.study.counted:
        yield from _tally(part, part.study.counted)
    if without := [title for title in part.study.metrics if title not in _shown(part)]:
        yield f"No run has: {'; '.join(without)}."
    if missing := _missing(part):
        yield f"Not run at this scale: {'; '.join(missing)}."
    commits = ", ".join(dict.fromkeys(result.commit for result in part.results))
    devices = "; ".join(dict.fromkeys(result.device for result in part.results))
    file = f"{part.name}-{part.scale}.csv"
    yield f"Every run: [{file}](data/{file}), by {commits} on {devices}."


def _correlation(study: PaperStudy, r: float, runs: int) -> str:
    """Return a sentence on the study's correlation."""
    assert study.correlation is not None
    one, other = study.correlation.of
    printed = f"in the paper {study.correlation.printed:.2f}"
    return f"Correlation of {one} and {other} over {runs} runs: {r:.2f}, {printed}."


def _tally(part: Measurement, metric: str) -> Iterator[str]:
    """Return a sentence on how often each measured row is a column's best."""
    study = part.study
    found = {
        (row, column): number.spread.mean
        for column in study.columns
        for row in study.rows
        if row not in study.only and (number := part.number(metric, Cell(row, column)))
    }
    rows = list(dict.fromkeys(row for row, _ in found))
    columns = [c for c in study.columns if all((row, c) in found for row in rows)]
    if len(rows) < 2 or not columns:
        return
    here = Counter(max(rows, key=lambda row: found[row, column]) for column in columns)
    there = Counter(
        max(rows, key=lambda row: study.number(metric, row, column) or 0.0) for column in columns
    )
    counts = ", ".join(f"{row} {here[row]} ({there[row]})" for row in rows)
    where = f"{len(columns)} column{'s' * (len(columns) > 1)}"
    yield f"Best of these rows by {metric}, in {where} (in the paper): {counts}."


def _missing(part: Measurement) -> list[str]:
    """Return the rows and columns of the study that have no run at this scale."""
    run = [result.cell for result in part.results]
    rows, columns = {cell.row for cell in run}, {cell.column for cell in run}
    rows |= {row for row, of in part.study.means.items() if rows.issuperset(of)}
    planned = [
        row for row, text in part.study.rows.items() if text is not None or row in part.study.each
    ]
    return [
        *(row for row in planned if row not in rows),
        *(column for column in part.study.columns if column not in columns),
    ]


def _table(part: Measurement) -> str:
    """Return a line for each cell that was run or is only printed, column by column."""
    study, instead = part.study, part.study.scales[part.scale].instead
    titles = [title for metric in _shown(part) for title in _heads(study, metric)]
    lines = [["column", "row", "seeds", *titles]]
    lines.append(["---"] * len(lines[0]))
    run = {result.cell.column for result in part.results}
    for cell in (Cell(row, column) for column in study.columns for row in study.rows):
        seeds = len({result.seed for result in part.results_of(cell)})
        place = (
            f"{cell.column} (here {instead[cell.column]})"
            if cell.column in instead
            else cell.column
        )
        if seeds or (cell.column in run and _is_printed_only(study, cell)):
            lines.append([place, cell.row, str(seeds or "–"), *_cells(part, cell)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _is_printed_only(study: PaperStudy, cell: Cell) -> bool:
    """Return whether a cell's row is never run, and the paper has a number there."""
    if study.rows[cell.row] is not None or cell.row in study.each:
        return False
    return any(study.number(name, cell.row, cell.column) is not None for name in study.metrics)


def _shown(part: Measurement) -> list[str]:
    """Return the titles of the metrics that a run has; all if none has any."""
    names = {name for result in part.results for name in result.numbers}
    return [title for title, name in part.study.metrics.items() if name in names] or [
        *part.study.metrics
    ]


def _heads(study: PaperStudy, metric: str) -> list[str]:
    """Return the heads of a metric's columns.

    The paper's and the sign only where the paper says it.
    """
    printed = ["paper"] * (metric in study.printed)
    signed = metric in study.printed or (study.leads and metric == next(iter(study.metrics)))
    return [metric, *printed, *["sign"] * bool(signed)]


def _here(part: Measurement, metric: str, cell: Cell) -> str:
    with_it, seeds = part.seeds_with(metric, cell)
    some = 0 < len(with_it) < seeds
    return f"{len(with_it)} of {seeds} seeds" if some else number_text(part.number(metric, cell))


def _cells(part: Measurement, cell: Cell) -> Iterator[str]:
    """Return, for each metric: our number, the paper's, and the sign."""
    for metric in _shown(part):
        _, *more = _heads(part.study, metric)
        yield _here(part, metric, cell)
        if "paper" in more:
            yield printed_text(part.study.number(metric, cell.row, cell.column))
        if "sign" in more:
            yield part.sign(metric, cell)
