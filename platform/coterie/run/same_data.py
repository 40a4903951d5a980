"""Checks that a resumed run has the data it began with, by a fingerprint in checkpoints."""

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

from coterie.contract.content import arrays_digest, contents_digest, digest, labels_digest
from coterie.contract.data import DataArrays, Indices
from coterie.contract.samples import StreamedSamples
from coterie.errors import ConfigError, listed
from coterie.rounds.state import RunState

ValueT = TypeVar("ValueT")

_NAMED = 1000
"""Clients and classes that a fingerprint lists, so that the error can name what has changed."""
_WHAT = {
    "labels": "labels of the training samples differ",
    "contents": "contents of the training samples differ",
    "test": "the test set differs",
    "held out": "values of the validation or test loader differ",
    "split": "clients hold other samples",
}
"""Key of a fingerprint to what another value of it means."""


def fingerprint(
    data: DataArrays, parts: Sequence[Indices], node_local: Sequence[str] = ()
) -> dict[str, Any]:
    """Describe a run's data: samples of each client, names, and digests of labels and contents.

    Args:
        data: The data set.
        parts: Client to its rows.
        node_local: A digest of each client's data, where the data stays with its clients.

    Returns:
        Plain values, of a size that does not grow with the samples.
    """
    sizes = [len(rows) for rows in parts]
    by_name = len(data.owner_names) == len(parts)
    names = list(data.owner_names if by_name else map(str, range(len(parts))))
    if node_local:
        found = {"contents": digest(json.dumps([*node_local]).encode())}
    else:
        found = {
            "labels": labels_digest(data.labels),
            "contents": contents_digest(data.samples),
            "test": digest(
                contents_digest(data.test_samples).encode(),
                labels_digest(data.test_labels).encode(),
            ),
            "held out": arrays_digest(data.samples.held_out())
            if isinstance(data.samples, StreamedSamples)
            else "",
            "split": digest(*parts),
        }
    return {
        "shape": list(data.shape),
        "clients": names[:_NAMED],
        "sizes": sizes[:_NAMED],
        "classes": list(data.classes[:_NAMED]),
        "all": digest(json.dumps([names, sizes, data.classes]).encode()),
        **found,
    }


def check_same_data(
    then: Mapping[str, Any],
    now: Mapping[str, Any],
    metadata: Mapping[str, Any],
    *,
    accepted: bool,
    private: bool = False,
) -> str:
    """Compare the data of a resumed run with that of its checkpoint.

    Args:
        then: The fingerprint in the checkpoint.
        now: That of the data as it is.
        metadata: The method's metadata in the checkpoint.
        accepted: Whether the user accepts changed data.
        private: Whether the run counts what each client or sample has been part of, for ε.

    Returns:
        What has changed, to stand in a sentence; "" if nothing has.

    Raises:
        ConfigError: If something has and it is not accepted, or cannot be: samples of another shape
            do not fit the model, nor other clients a server that keeps metadata of each. In a
            private run nobody can tell who of the new data has paid already.
    """
    changed = _changes(then, now)
    if not changed:
        return ""
    before = len(then["sizes"])
    fits = (
        not private
        and then["shape"] == now["shape"]
        and (before == len(now["sizes"]) or not _is_by_client(metadata, before))
    )
    if accepted and fits:
        return listed(changed)
    remedy = ", or set accept_changed_data=true to go on with it" if fits else ""
    raise ConfigError(
        f"resume=true: the data is not what the run began with ({listed(changed)}); put it back as "
        f"it was, {'' if remedy else 'or '}begin a new run{remedy}."
    )


def follow_clients(state: RunState, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Give each client's values in a state to the client of the same name; drop the others."""
    if then["clients"] == now["clients"]:
        return
    places = {name: client for client, name in enumerate(now["clients"])}
    moved = {old: places[name] for old, name in enumerate(then["clients"]) if name in places}

    def numbered(of_clients: Mapping[int, ValueT]) -> dict[int, ValueT]:
        return {moved[client]: own for client, own in of_clients.items() if client in moved}

    state.states, state.accounts = numbered(state.states), numbered(state.accounts)
    state.peer_messages = {
        to: numbered(messages) for to, messages in numbered(state.peer_messages).items()
    }
    state.ledger.versions = numbered(state.ledger.versions)
    state.ledger.received = numbered(state.ledger.received)


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changed = []
    if then["shape"] != now["shape"]:
        changed.append(f"samples have shape {tuple(now['shape'])}, and had {tuple(then['shape'])}")
    changed += _changed_clients(then, now)
    for new, old in zip_longest(now["classes"], then["classes"]):
        if new != old:
            words = {None: "no class"}
            changed.append(f"class {words.get(new, new)} was {words.get(old, old)}")
    if not changed and then["all"] != now["all"]:
        changed.append("clients or classes differ")
    differing = [what for key, what in _WHAT.items() if then.get(key) != now.get(key)]
    # Other clients hold other samples anyway.
    return [*changed, *(what for what in differing if not changed or what != _WHAT["split"])]


def _is_by_client(value: Any, clients: int) -> bool:
    """Return whether a value contains a list with an entry for each client."""
    if isinstance(value, Mapping):
        return any(_is_by_client(inner, clients) for inner in value.values())
    return isinstance(value, list) and len(value) == clients


def _changed_clients(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    before = dict(zip(then["clients"], then["sizes"], strict=True))
    after = dict(zip(now["clients"], now["sizes"], strict=True))
    gone = [f"client {name} is gone" for name in before if name not in after]
    new = [f"client {name} is new" for name in after if name not in before]
    other = [
        f"client {name} has {after[name]} samples and had {size}"
        for name, size in before.items()
        if after.get(name, size) != size
    ]
    return [*gone, *new, *other]
