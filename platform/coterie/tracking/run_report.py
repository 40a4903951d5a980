"""`report.html`: a run's config, curves, scores, failures, bytes and clients on one page.

The page is made from the files of the run directory alone, so it can be made again at any time.
Pictures and styles are inside it; it loads nothing and runs no script.
"""

import base64
import csv
import io
import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.config.about import about
from coterie.config.differences import changed_keys
from coterie.config.explain import show
from coterie.config.plain_files import read_bytes, read_json, read_yaml
from coterie.config.schema import RunConfig
from coterie.errors import DataError, damage
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.environment import ENVIRONMENT_KEYS
from coterie.tracking.formatting import format_bytes, format_seconds
from coterie.tracking.metrics_log import read_rows
from coterie.tracking.page_template import page_template
from coterie.tracking.report_words import OUTLIERS, client_clusters, in_words, own_noise_of
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.score_names import score_tables
from coterie.tracking.skipped import SKIPPED
from coterie.tracking.summary import read_summary

_TEMPLATE = Path(__file__).with_name("report.html.jinja")
_CAPTIONS = {
    "curves": "Loss of each stage and scores over the rounds",
    "partition": "Samples of each class on each client",
    "client_groups": "Groups of clients over the rounds",
    "clusters": "Clusters: size, confidence, content, and other numbers of clusters",
    "confusion": "True classes against matched clusters",
    "class_distances": "Mean distances between the representations of classes",
    "tsne": "t-SNE of the representations",
}
"""Figures in the order of the page; others follow."""
_ROUNDS = 12
_CLIENTS = 30
_FAILURES = 30
_WIDE = 1.7
"""Width divided by height from which a figure has its own row."""
_MODEL = "model.json"
_PLACE = ("round", "stage")
_DIRECTIONS = {"down": "to clients", "up": "to the server", "peer": "between clients"}
_DAMAGE = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    *(csv.Error, struct.error),
)
"""Errors that files raise which no run wrote."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        rows: The cells; the first of each row names it.
        note: What the table leaves out, as a sentence; "" if nothing.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def write_run_report(directory: RunDirectory, config: RunConfig) -> Path:
    """Write `report.html` from the run directory's other files, of which any may be missing.

    Raises:
        DataError: If one of them is damaged.
    """
    try:
        text = _page(directory, config)
    except _DAMAGE as error:
        raise DataError(
            f"{directory.path}: a file of the run is damaged ({damage(error)}), so it has no "
            f"{directory.report.name}; remove files that it did not write."
        ) from error
    write_text_atomically(directory.report, text)
    return directory.report


def _page(directory: RunDirectory, config: RunConfig) -> str:
    summary = read_summary(directory.summary)
    failures = summary.get("failures", [])
    with _named(directory.metrics):
        rows = read_rows(directory.metrics, "server")
        rounds, sent = _round_table(rows), _byte_table(rows, summary)
        own_noise = own_noise_of(rows, summary)
    with _named(directory.assignments):
        found = client_clusters(directory.assignments)
    with _named(directory.model / _MODEL):
        most = _clusters_of(directory.model / _MODEL)
    with _named(directory.clients):
        clients = _client_table(directory.clients)
    with _named(directory.path / SKIPPED):
        skipped = _skipped_table(directory.path / SKIPPED)
    with _named(directory.config):
        software = _software(directory, summary)
    clusters = None if found is None else sum(name != OUTLIERS for name in found[0][1:])
    return page_template(_TEMPLATE).render(
        title=config.experiment,
        about=about([config]),
        folder=directory.path.name,
        summary=summary,
        tiles=_tiles(summary),
        words=in_words(summary, config.privacy, clusters, own_noise, most=most),
        clusters=None if found is None else Table(*found),
        scores=[_score_table(table) for table in score_tables(summary.get("metrics", {}))],
        rounds=rounds,
        figures=_figures(directory.figures),
        failures=failures[:_FAILURES],
        failed=len(failures),
        skipped=skipped,
        sent=sent,
        seconds=_second_table(summary),
        clients=clients,
        config={key: show(value) for key, value in changed_keys(config).items()},
        software=software,
    )


def _clusters_of(path: Path) -> int | None:
    """Return the number of clusters that a model's description states; None if it states none."""
    described = read_json(path) if path.is_file() else {}
    number = described.get("clusters") if isinstance(described, dict) else None
    return number if isinstance(number, int) else None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn errors about damaged content, within the context, into one that names the file."""
    try:
        yield
    except _DAMAGE as error:
        raise DataError(
            f"{path}: it is damaged ({damage(error)}), so the run has no report.html; restore it, "
            "or remove it if the run did not write it."
        ) from error


def _tiles(summary: Row) -> dict[str, str]:
    """Return the numbers at the top of the page: up to four scores, then size, bytes and time."""
    groups = summary.get("metrics", {})
    main: Row = next(
        (groups[name] for name in ("clustering", "test", "train") if name in groups), {}
    )
    shown = {name.upper(): _number(value) for name, value in list(main.items())[:4]}
    if summary:
        sent = sum(summary["bytes"].values())
        shown |= {"rounds": f"{summary['rounds']:,}", "clients": f"{summary['clients']:,}"}
        spent = summary.get("privacy", {})
        if spent:
            name = f"ε for one {spent['unit']}, δ={spent['delta']:g}"
            shown[name] = f"{spent['epsilon']:.3g}"
        shown |= {"sent in all directions": format_bytes(sent)}
        shown |= {"time": format_seconds(summary["seconds"].get("total") or 0.0)}
    return shown


def _score_table(scores: Mapping[str, Mapping[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in scores.values() for name in row))
    rows = [[label, *(_number(row.get(name)) for name in names)] for label, row in scores.items()]
    return Table(["", *names], rows)


def _round_table(rows: Sequence[Row]) -> Table | None:
    """Return the evaluations between rounds, at most twelve of them."""
    tracked = [name for name in dict.fromkeys(key for row in rows for key in row) if "/" in name]
    ours = ("clustering/", "clustering_test/", "train/", "test/", "linear/", "local/", "groups/")
    names = [name for name in tracked if name.startswith((*ours, "unsupervised/"))]
    found = [row for row in rows if any(row.get(name) is not None for name in names)]
    if not found:
        return None
    last = len(found) - 1
    kept = sorted({round(i * last / max(1, _ROUNDS - 1)) for i in range(_ROUNDS)}) if last else [0]
    shown = [found[i] for i in kept] if len(found) > _ROUNDS else found
    note = f"{len(shown)} of {len(found)} evaluations; metrics.jsonl has all of them."
    return Table(
        [*_PLACE, "loss", *names],
        [
            [*(str(row[key]) for key in _PLACE), *(_number(row.get(k)) for k in ("loss", *names))]
            for row in shown
        ],
        note if len(found) > len(shown) else "",
    )


def _figures(folder: Path) -> list[dict[str, Any]]:
    """Return the figures as data URIs with captions."""
    order = list(_CAPTIONS)
    paths = sorted(
        folder.glob("*.png"),
        key=lambda path: (order.index(path.stem) if path.stem in order else 99, path.stem),
    )
    found = []
    for path in paths:
        content = read_bytes(path)
        found.append(
            {
                "caption": _CAPTIONS.get(path.stem, path.stem.replace("_", " ")),
                "data": base64.b64encode(content).decode(),
                "wide": path.stem == "curves" or _aspect(content) > _WIDE,
            }
        )
    return found


def _aspect(png: bytes) -> float:
    """Return a PNG's width divided by its height, from bytes 16 to 23 of its header."""
    width, height = struct.unpack(">II", png[16:24])
    return float(width / height)


def _byte_table(rows: Sequence[Row], summary: Row) -> Table | None:
    """Return a table of bytes by direction and slot."""
    sums: Counter[str] = Counter()
    for row in rows:
        for name, value in row.items():
            if name.startswith("bytes/") and name.count("/") >= 2:
                sums[name.removeprefix("bytes/")] += int(value or 0)
    cells = [
        [_DIRECTIONS[way], slot, format_bytes(size)]
        for (way, _, slot), size in ((name.partition("/"), size) for name, size in sums.items())
        if size
    ]
    evaluation = summary.get("bytes", {}).get("evaluation", 0)
    cells += [["evaluation", "", format_bytes(evaluation)]] if evaluation else []
    return Table(["direction", "what", "bytes"], cells) if cells else None


def _second_table(summary: Row) -> Table | None:
    seconds = summary.get("seconds", {})
    total = [name for name in ("total",) if name in seconds]
    names = [*(name for name in seconds if name not in total), *total]
    cells = [[name.replace("_", " "), format_seconds(seconds[name] or 0.0)] for name in names]
    return Table(["purpose", "time"], cells) if cells else None


def _skipped_table(path: Path) -> Table | None:
    """Return the samples that were left out because they could not be read."""
    if not path.is_file():
        return None
    head, *rows = csv.reader(_opened(path))
    note = f"{_FAILURES} of {len(rows):,} samples; {SKIPPED} has all of them."
    return Table(head, rows[:_FAILURES], note if len(rows) > _FAILURES else "")


def _client_table(path: Path) -> Table | None:
    """Return a table of the clients.

    Of many those with the most failures, then those with the largest loss.
    """
    if not path.is_file():
        return None
    rows = list(csv.DictReader(_opened(path)))
    if not rows:
        return None
    shown, note = rows, ""
    if len(rows) > _CLIENTS:
        worst = sorted(rows, key=lambda row: (-int(row["failures"]), -float(row["loss"] or -1e300)))
        shown = worst[:_CLIENTS]
        note = (
            f"{_CLIENTS} of {len(rows):,} clients, those with the most failures or else the "
            "largest loss; clients.csv has all of them."
        )
    head = list(rows[0])
    cells = [[_client_cell(name, row[name]) for name in head] for row in shown]
    return Table([name.replace("_", " ") for name in head], cells, note)


def _opened(path: Path) -> io.StringIO:
    """Return the rows of a CSV file, unless it is larger than a run writes."""
    return io.StringIO(read_bytes(path).decode("utf-8"), newline="")


def _client_cell(column: str, value: str) -> str:
    if column.startswith("bytes"):
        return format_bytes(int(value))
    if column == "seconds":
        return format_seconds(float(value))
    if column == "loss":
        return _number(float(value) if value else None)
    return value


def _software(directory: RunDirectory, summary: Row) -> str:
    """Return one line with Coterie's version and commit, the packages' versions, and the device."""
    if not directory.config.is_file():
        return ""
    values = read_yaml(directory.config)  # again, as it may be another file by now
    known = {key: values.get(key) for key in ENVIRONMENT_KEYS}
    packages = ", ".join(f"{name} {version}" for name, version in (known["packages"] or {}).items())
    commit = f" ({summary['commit']})" if summary.get("commit") else ""
    device = f"; {summary['device']}" if summary.get("device") else ""
    versions = f"Python {known['python']}, {known['platform']}, {packages}"
    return f"Coterie {known['version']}{commit}, {versions}{device}"


def _number(value: float | None) -> str:
    """Format with three decimals, or three digits of very large and small numbers, or a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.3f}" if 0.001 <= abs(value) < 10_000 or value == 0 else f"{value:.3g}"
