"""Results beyond the papers' tables: a sentence with its numbers and command for each."""

import csv
from collections import defaultdict
from pathlib import Path

from coterie.errors import DataError

_FIELDS = ("page", "finding", "measured", "seeds", "command", "commit", "device")


def findings_texts(path: Path) -> dict[str, str]:
    """Return the findings of each page of docs/results, as a Markdown list.

    Args:
        path: A CSV file with the columns page, finding, measured, seeds, command, commit, device;
            where the command is left out, the run is that of the line above.

    Raises:
        DataError: If a column is missing.
    """
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    if wrong := [line for line in lines if tuple(line) != _FIELDS or None in line.values()]:
        raise DataError(f"{path}: {wrong[0]} does not have the columns {', '.join(_FIELDS)}.")
    texts = defaultdict(list)
    for line in lines:
        texts[line["page"]].append(_text(line))
    return {page: "\n".join(items) for page, items in texts.items()}


def _text(line: dict[str, str]) -> str:
    """Return a finding as an item of a list, with its command below it."""
    seeds = f"seed{'s' * (',' in line['seeds'])} {line['seeds']}"
    item = f"- {line['finding']}: {line['measured']} ({seeds}; {line['commit']}, {line['device']})."
    command = f"\n\n    ```bash\n    {line['command']}\n    ```\n"
    return item + command if line["command"] else item
