"""A measurement's lines as a CSV file, written as they come."""

import csv
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from coterie.commands.arguments import read_values

Line = dict[str, object]
Measure = Callable[[str, str, Path], Iterable[Line]]
"""From device, scale and folder to lines."""


def write_lines(name: str, fields: tuple[str, ...], measure: Measure, arguments: list[str]) -> int:
    """Write the lines to the file `name` and to the standard output; 1 if one has an error."""
    given = {"device": "cuda", "scale": "paper", "out": "runs/gpu"} | read_values(arguments)
    folder = Path(given["out"])
    folder.mkdir(parents=True, exist_ok=True)
    failed = False
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, fields, lineterminator="\n")
        lines.writeheader()
        for line in measure(given["device"], given["scale"], folder):
            lines.writerow(line)
            file.flush()
            failed = failed or "error" in line
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    return int(failed)


def reason(error: Exception) -> str:
    """An error in at most 200 characters of one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
