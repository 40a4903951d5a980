"""The tables of an audit in a terminal of 80 columns."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from coterie.errors import printable
from coterie.evaluation.membership import Membership
from coterie.run.audit_messages import AuditedKey
from coterie.tracking.formatting import format_bytes

_CAPTION = "fewest: the fewest samples behind a number"
_SUMMED = "; {0}: behind a sum over {1:,} clients, which is all that the server reads"
_UNSAID = "; -: clients do not say it"
_WHOLE = 80
_INTERVAL = len("0.006 (0.002-0.039)")


def messages_table(keys: Sequence[AuditedKey], columns: int = _WHOLE) -> Table:
    """Return a table of what left the clients, with a row for each key.

    Below 80 columns it has no dtypes and shapes.
    """
    whole = columns >= _WHOLE
    summed = next((key for key in keys if key.summed and key.samples is not None), None)
    caption = _CAPTION + (_SUMMED.format(_fewest(summed), summed.summed) if summed else "")
    caption += _UNSAID if any(key.samples is None for key in keys) else ""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("what", no_wrap=True)
    table.add_column("key", max_width=18, overflow="fold")
    if whole:
        table.add_column("spec", overflow="fold", max_width=24)
    for name in ("phases", "clients", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fewest", justify="right", max_width=10)
    for key in keys:
        specs = key.specs[0] if len(key.specs) == 1 else f"{key.specs[0]} … {key.specs[-1]}"
        table.add_row(
            Text(printable(key.type)),
            Text(printable(key.key)),
            *([Text(printable(specs))] if whole else []),
            f"{key.phases:,}",
            f"{key.clients:,}",
            format_bytes(key.bytes) if key.bytes else "-",
            _fewest(key),
        )
    return table


def attacks_table(attacks: Mapping[str, Membership], columns: int = _WHOLE) -> Table:
    """Return a table of each attack's result, with 95 % intervals."""
    width = _INTERVAL if columns >= _WHOLE else len("(0.450-0.536)")
    caption = "in brackets: 95 % intervals"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("attack", max_width=None if columns >= _WHOLE else 10)
    table.add_column("members + others", justify="right", max_width=12)
    for name in ("AUC", "TPR at 1 % FPR"):
        table.add_column(name, justify="right", min_width=width)
    for name, found in attacks.items():
        table.add_row(
            name,
            f"{found.members:,} + {found.others:,}",
            _with_interval(found.auc, found.auc_interval),
            _with_interval(found.tpr, found.tpr_interval),
        )
    return table


def _fewest(key: AuditedKey) -> str:
    """Return the fewest samples and, where only a sum is read, the number of its clients."""
    if key.samples is None:
        return "-"
    return f"{key.samples:,}" + (f" of {key.summed:,}" if key.summed else "")


def _with_interval(value: float, bounds: tuple[float, float]) -> str:
    return f"{value:.3f} ({bounds[0]:.3f}-{bounds[1]:.3f})"
