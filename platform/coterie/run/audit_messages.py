"""What left the clients of a run, by key, from the rows that the run has written."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.errors import DataError, damage
from coterie.tracking.metrics_log import read_rows


@dataclass(frozen=True, kw_only=True)
class AuditedKey:
    """What clients sent under one key over a run.

    Attributes:
        type: "slot", "gathered", "peer_message", "metric", "note", "keys", "state" or "failure".
        specs: Its dtypes and shapes; several if they differ from phase to phase.
        phases: The phases in which it was sent.
        clients: The most clients that sent it in a phase.
        bytes: Bytes over all phases and clients.
        samples: The fewest samples that a vector of it stands for; None where that is unknown.
        summed: The fewest clients in a sum that the server reads in place of it; 0 where it reads
            what each client, or each process, sends.
    """

    type: str
    key: str
    specs: tuple[str, ...]
    phases: int
    clients: int
    bytes: int
    samples: int | None
    summed: int = 0

    def row(self) -> dict[str, Any]:
        """Return the values for `audit.json`."""
        return asdict(self)


def audited_keys(metrics: Path) -> list[AuditedKey]:
    """Sum up a run's messages by key, in the order in which they were first sent.

    Raises:
        DataError: If the run has not written what its clients sent.
    """
    rows = read_rows(metrics)
    phases = [row for row in rows if row.get("scope") == "messages"]
    if not phases:
        raise DataError(
            f"{metrics}: it does not say what clients sent, because no phase has ended; "
            "start the run again."
        )
    try:
        return [*_joined(sent for phase in phases for sent in phase["messages"]), *_failures(rows)]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{metrics}: its messages are damaged ({damage(error)}); run it again."
        ) from error


def _joined(messages: Iterable[Mapping[str, Any]]) -> list[AuditedKey]:
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for sent in messages:
        _check(sent)
        found.setdefault((sent["type"], sent["key"]), []).append(sent)
    order = ("slot", "gathered", "peer_message", "metric", "note", "keys", "state")
    places = sorted(found, key=lambda place: order.index(place[0]) if place[0] in order else 9)
    return [_key(*place, found[place]) for place in places]


def _check(sent: Mapping[str, Any]) -> None:
    texts = all(isinstance(sent[name], str) for name in ("type", "key", "spec"))
    numbers = all(type(sent[name]) is int for name in ("clients", "bytes", "summed"))
    if not (texts and numbers and (sent["samples"] is None or type(sent["samples"]) is int)):
        raise TypeError(sent["key"])


def _key(kind: str, key: str, sent: Sequence[Mapping[str, Any]]) -> AuditedKey:
    known = [each["samples"] for each in sent if each["samples"] is not None]
    return AuditedKey(
        type=kind,
        key=key,
        specs=tuple(dict.fromkeys(each["spec"] for each in sent)),
        phases=len(sent),
        clients=max(each["clients"] for each in sent),
        bytes=sum(each["bytes"] for each in sent),
        samples=min(known, default=None),
        summed=min(each["summed"] for each in sent),
    )


def _failures(rows: Iterable[Mapping[str, Any]]) -> list[AuditedKey]:
    """Return the reasons that failed clients gave, which the server also reads."""
    failed = [row for row in rows if row.get("scope") == "event" and "client" in row]
    if not failed:
        return []
    size = sum(len(row["failure"].encode()) for row in failed)
    clients = len({row["client"] for row in failed})
    phases = len({(row["round"], row["step"]) for row in failed})
    return [
        AuditedKey(
            type="failure",
            key="message",
            specs=("text",),
            phases=phases,
            clients=clients,
            bytes=size,
            samples=None,
        )
    ]
