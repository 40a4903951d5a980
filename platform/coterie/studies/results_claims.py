"""The claims of the papers, and which of them hold in the measured results."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from coterie.studies.measurement import Measurement, number_text, printed_text, sign
from coterie.studies.paper_study import Cell, Claim

_MISSING = "Not decided, since a row was not run, or did not reach the value that it is asked for:"


def claims_table(found: Iterable[list[Measurement]]) -> str:
    """Return how many claims hold, a line for each measured one, and a list of the others.

    A claim counts at the most telling scale at which both of its cells were measured.
    """
    lines, others = [], defaultdict[str, list[str]](list)
    for parts in found:
        for claim in parts[0].study.claims:
            measured = next(filter(None, (_claim(part, claim) for part in parts)), None)
            if measured:
                lines.append(measured)
            else:
                others[_link(parts[0])].append(claim.says)
    counts = Counter(line[3] for line in lines)
    head = (
        f"Claims measured: {len(lines)}. Yes: {counts['yes']}, no: {counts['no']}, "
        f"undecided: {counts['undecided']}."
    )
    titles = [["claim", "paper", "here", "holds?", "details"], ["---"] * 5]
    table = [f"| {' | '.join(line)} |" for line in [*titles, *lines]]
    rest = [f"- {link}: {'; '.join(dict.fromkeys(claims))}." for link, claims in others.items()]
    return "\n".join([head, "", *table, *(["", _MISSING, "", *rest] if rest else [])])


def _claim(part: Measurement, claim: Claim) -> list[str] | None:
    """Return a claim's line; None if one of its cells was not measured."""
    metric = claim.metric or next(iter(part.study.metrics))
    cells = [Cell(*claim.more), Cell(*claim.less)]
    more, less = (part.number(metric, cell) for cell in cells)
    if more is None or less is None:
        return None
    instead = part.study.scales[part.scale].instead
    data = {instead.get(cell.column, "") for cell in cells} - {""}
    where = f"{', '.join(sorted(data))}: " if data else ""
    here = f"{where}{metric} {number_text(more)} against {number_text(less)}"
    printed = [part.study.number(metric, cell.row, cell.column) for cell in cells]
    paper = "in words" if None in printed else " against ".join(map(printed_text, printed))
    return [claim.says, paper, here, sign(more, less, 1.0, part.noise), _link(part)]


def _link(part: Measurement) -> str:
    """Return the link to the study's tables."""
    study = part.study
    slug = re.sub(r"[^\w -]", "", study.paper.lower()).replace(" ", "-")
    return f"[{study.paper}](results/{study.page}.md#{slug})"
