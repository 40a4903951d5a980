"""A report on a data set: its content, unreadable samples, and duplicates."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.contract.data import Unreadable
from coterie.datamodules.base import HALVES, DataSet
from coterie.datamodules.contact_sheet import write_contact_sheet
from coterie.datamodules.image_files import Tally
from coterie.datamodules.inspection import Looked, look_at
from coterie.datamodules.source import Source
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.csv_text import csv_text
from coterie.tracking.skipped import write_skipped

UNREADABLE, DUPLICATES, SHEET = "unreadable.csv", "duplicates.csv", "contact_sheet.png"


@dataclass
class Findings:
    """The content of a training or test set.

    Attributes:
        samples: The number of samples that can be read.
        sizes: Number of samples by "height×width" or number of features.
        modes: Number of pictures by mode.
        classes: Number of samples by class.
        unlabelled: Number of samples without a label, where others may have one.
        clients: Number of samples by client.
        tally: How many pictures are not square, or dark.
    """

    samples: int = 0
    sizes: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    unlabelled: int = 0
    clients: Counter[str] = field(default_factory=Counter)
    bad: list[Unreadable] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def add(self, looked: Looked, source: Source, classes: Sequence[str]) -> None:
        """Count one sample."""
        if looked.error is not None:
            self.bad.append(Unreadable(looked.error.name, looked.error.reason))
            return
        self.samples += 1
        self.sizes["×".join(map(str, looked.shape))] += 1
        self.modes[looked.mode or "vector"] += 1
        self.tally.merge(looked.tally)
        if source.labels is not None:
            label = int(source.labels[looked.row])
            if label < 0:
                self.unlabelled += 1
            else:
                self.classes[_named(classes, label)] += 1
        if source.owners is not None:
            self.clients[source.owner_names[source.owners[looked.row]]] += 1


@dataclass
class Report:
    """The content of a data set.

    Attributes:
        duplicates: Groups of samples with the same content, each (half, class, name).
    """

    halves: dict[str, Findings]
    duplicates: list[list[tuple[str, str, str]]]
    files: list[Path]

    @property
    def bad(self) -> int:
        """The number of samples that cannot be read."""
        return sum(len(half.bad) for half in self.halves.values())

    @property
    def across(self) -> int:
        """The number of groups of duplicates that span classes, or training and test set."""
        return sum(len({one[:2] for one in group}) > 1 for group in self.duplicates)


def check_data(data: DataSet[Any], out: Path) -> Report:
    """Read every sample once, and write what was found.

    Args:
        data: The data set; its pictures are decoded, and none is kept.
        out: Folder for the list of unreadable pictures, that of duplicates, and the contact sheet.

    Raises:
        DataError: If the data cannot be found or opened.
    """
    found: dict[str, Findings] = {}
    same: dict[bytes, list[tuple[str, str, str]]] = defaultdict(list)
    files: list[Path] = []
    for half in HALVES if data.has_test() else HALVES[:1]:
        source = data.as_shown(data.open_half(half))
        classes = data.classes or source.classes
        findings = found[half] = Findings()
        good: list[int] = []
        for looked in look_at(source):
            findings.add(looked, source, classes)
            if looked.error is None:
                good.append(looked.row)
                label = -1 if source.labels is None else int(source.labels[looked.row])
                kind = "" if label < 0 else _named(classes, label)
                same[looked.digest()].append((half, kind, looked.name))
        sheet = out / (SHEET if not data.has_test() else f"{half}_{SHEET}")
        if write_contact_sheet(source, good, classes, sheet):
            files.append(sheet)
    report = Report(found, [group for group in same.values() if len(group) > 1], files)
    _write_tables(report, out)
    return report


def _write_tables(report: Report, out: Path) -> None:
    for name in (UNREADABLE, DUPLICATES):  # of another data set
        (out / name).unlink(missing_ok=True)
    bad = [one for half in report.halves.values() for one in half.bad]
    if bad:
        write_skipped(out / UNREADABLE, bad)
        report.files.append(out / UNREADABLE)
    if report.duplicates:
        rows = ((number, *one) for number, group in enumerate(report.duplicates) for one in group)
        head = ("group", "half", "class", "file")
        write_text_atomically(out / DUPLICATES, csv_text([head, *rows]))
        report.files.append(out / DUPLICATES)


def _named(classes: Sequence[str], label: int) -> str:
    return classes[label] if label < len(classes) else str(label)
