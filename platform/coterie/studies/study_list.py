"""All studies of the papers in one list, at most 80 columns wide."""

import textwrap

from coterie.studies.paper_study import SCALES, read_study, studies

_WIDTH = 80


def study_list() -> str:
    """Return a sentence for each study, and the time and hardware that it takes at each scale."""
    found = {name: read_study(name) for name in studies()}
    column = max(map(len, found)) + 2
    lines = []
    for name, study in found.items():
        takes = ", ".join(f"{scale} {study.scales[scale].takes}" for scale in SCALES)
        lines += textwrap.wrap(
            f"{study.paper}: {study.about}",
            _WIDTH,
            initial_indent=name.ljust(column),
            subsequent_indent=" " * column,
        )
        indent = " " * column
        lines += textwrap.wrap(takes, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines)
