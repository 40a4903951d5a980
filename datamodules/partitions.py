"""Partitions of a data set over clients: pure functions of labels and a seed.

Each returns a sorted int64 array of rows per client; the arrays are disjoint, unless clients may
share samples (`grouped`). Random classes of clients (`k_classes`, `grouped`) are drawn before
samples, so with the same seed training and test set have the same classes per client.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.contract.data import Indices
from coterie.errors import DataError

Labels = NDArray[np.int64]


def stratified_subset(labels: Labels, count: int, seed: int) -> Indices:
    """Draw `count` rows at random with the classes' proportions, rounded by largest remainders."""
    rng = np.random.default_rng(seed)
    _, position, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    quota = count * sizes / len(labels)
    taken = np.floor(quota).astype(np.int64)
    by_remainder = np.argsort(taken - quota, kind="stable")
    taken[by_remainder[: count - taken.sum()]] += 1
    chosen = [
        rng.permutation(np.flatnonzero(position == number))[:amount]
        for number, amount in enumerate(taken)
    ]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def iid(size: int, clients: int, seed: int) -> list[Indices]:
    """Distribute `size` rows at random; the clients' sizes differ by at most one.

    Raises:
        DataError: If there are more clients than rows.
    """
    if clients > size:
        raise DataError(f"clients={clients} is more than the {size} samples; lower it.")
    rows = np.random.default_rng(seed).permutation(size)
    return _sorted(np.array_split(rows, clients))


def class_blocks(labels: Labels, clients: int) -> list[Indices]:
    """Give client k all samples of the k-th block of C/K consecutive classes, without randomness.

    Raises:
        DataError: If the number of classes is not a multiple of the number of clients.
    """
    classes = np.unique(labels)
    if len(classes) % clients or not len(classes):
        divisors = [k for k in range(1, len(classes) + 1) if len(classes) % k == 0]
        raise DataError(
            f"clients={clients}: class_blocks cannot deal out {len(classes)} classes evenly; set "
            f"partition.clients to one of {', '.join(map(str, divisors))}."
        )
    return [np.flatnonzero(np.isin(labels, block)) for block in np.split(classes, clients)]


def p_mixture(labels: Labels, clients: int, p: float, seed: int) -> list[Indices]:
    """Mix own-class and shared samples, as CCFC does: one client per class, in the classes' order.

    With s the equal share, client l takes p·s samples of class l (all of them if there are fewer).
    Then all clients are filled up to s with the remaining samples, so p = 0 is IID. With p = 1 each
    client has exactly its class, whatever the class's size.

    Raises:
        DataError: If the numbers of clients and classes differ.
    """
    classes = np.unique(labels)
    if len(classes) != clients:
        raise DataError(
            f"clients={clients}: p_mixture needs one client per class, and the labels have "
            f"{len(classes)}; set partition.clients={len(classes)}, or take partition=iid."
        )
    own_rows = [np.flatnonzero(labels == number) for number in classes]
    if p == 1:
        return own_rows
    rng = np.random.default_rng(seed)
    shares = _even_shares(len(labels), clients)
    own = [
        rng.permutation(rows)[: round(p * share)]
        for rows, share in zip(own_rows, shares, strict=True)
    ]
    left = rng.permutation(np.setdiff1d(np.arange(len(labels)), np.concatenate(own)))
    missing = [share - len(rows) for rows, share in zip(own, shares, strict=True)]
    filled = np.split(left, np.cumsum(missing)[:-1])
    return _sorted([np.concatenate(parts) for parts in zip(own, filled, strict=True)])


def k_classes(labels: Labels, clients: int, k: int, seed: int) -> list[Indices]:
    """Give each client k classes, as CF-CL does (10 devices with 3 classes each).

    Classes are distributed evenly: the numbers of clients that hold them differ by at most one. A
    class's samples are distributed evenly to the clients that hold it.

    Raises:
        DataError: If there are fewer than k classes, if clients · k is less than the number of
            classes, or if a class has fewer samples than clients that hold it.
    """
    classes = np.unique(labels)
    if k > len(classes) or clients * k < len(classes):
        raise DataError(
            f"clients={clients}: k_classes with k={k} classes each does not fit {len(classes)} "
            f"classes; set partition.k={min(k, len(classes))} and partition.clients="
            f"{max(clients, -(-len(classes) // min(k, len(classes))))}."
        )
    rng = np.random.default_rng(seed)
    holders = _spread_classes(len(classes), clients, k, rng)
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for number, members in zip(classes, holders, strict=True):
        rows = rng.permutation(np.flatnonzero(labels == number))
        if len(rows) < len(members):
            raise DataError(
                f"clients={clients}: k_classes has {len(members)} clients for the {len(rows)} "
                f"samples of class {number}; lower partition.clients or partition.k."
            )
        for client, share in zip(members, np.array_split(rows, len(members)), strict=True):
            parts[client].append(share)
    return _sorted([np.concatenate(own) for own in parts])


def grouped(
    labels: Labels,
    clients: int,
    groups: Sequence[Sequence[int]],
    counts: Sequence[int],
    seed: int,
    *,
    shared: bool = False,
) -> list[Indices]:
    """Give each client fixed counts of its group's classes, as CP-CFL does.

    Counts are assigned to classes at random per client (paper: 20, 20, 5, 5 over four classes).
    Samples are drawn without replacement, across all clients or, if they may be shared, for each
    client; the remaining samples are not used.

    Args:
        labels: int64 classes (n,).
        clients: Number of clients; `client_groups` assigns them to groups.
        groups: Classes of each group; groups may overlap.
        counts: Numbers of samples of a group's classes, in random order per client.
        seed: Seed of the order of the counts and of the samples.
        shared: Whether clients may have samples in common.

    Raises:
        DataError: If a group's size differs from the number of counts, a group names a class twice,
            there are fewer clients than groups, or a class has too few samples.
    """
    wrong = next((list(group) for group in groups if len(group) != len(counts)), None)
    if wrong is not None:
        raise DataError(
            f"grouped: the group {wrong} has {len(wrong)} classes, but counts={list(counts)} has "
            f"{len(counts)} entries; give one per class in partition.counts."
        )
    if (twice := next((list(g) for g in groups if len(set(g)) < len(g)), None)) is not None:
        raise DataError(f"grouped: the group {twice} names a class twice; name each once.")
    rng = np.random.default_rng(seed)
    member_of = client_groups(clients, len(groups))
    wanted: list[dict[int, int]] = [
        dict(zip(groups[group], rng.permutation(counts).tolist(), strict=True))
        for group in member_of
    ]
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for number in sorted({number for group in groups for number in group}):
        amounts = [want.get(number, 0) for want in wanted]
        rows = rng.permutation(np.flatnonzero(labels == number))
        wants = max(amounts) if shared else sum(amounts)
        if wants > len(rows):
            who, lower = "a client wants", f"lower partition.counts={list(counts)}"
            if not shared:
                who, lower = "the clients want", f"{lower} or partition.clients={clients}"
                lower += ", or let them share samples by partition.shared=true"
            raise DataError(
                f"grouped: {who} {wants} samples of class {number}, which has {len(rows)}; {lower}."
            )
        drawn = (
            [rng.permutation(rows)[:amount] for amount in amounts]
            if shared
            else np.split(rows, np.cumsum(amounts))
        )
        for part, share in zip(parts, drawn, strict=False):
            part.append(share)
    return _sorted([np.concatenate(own) for own in parts])


def with_small_joined(parts: Sequence[Indices], smallest: int) -> list[Indices]:
    """Merge the clients with fewer rows than `smallest` into one, which comes last.

    If it has fewer itself, the smallest of the others, the first of several, joins it too.
    """
    if all(len(part) >= smallest for part in parts):
        return list(parts)
    by_size = sorted(range(len(parts)), key=lambda client: (len(parts[client]), client))
    joined: list[int] = []
    for client in by_size:
        held = sum(len(parts[each]) for each in joined)
        if len(parts[client]) >= smallest <= held:
            break
        joined.append(client)
    others = [part for client, part in enumerate(parts) if client not in joined]
    return [*others, np.sort(np.concatenate([parts[client] for client in sorted(joined)]))]


def merged(parts: Sequence[Indices], members: NDArray[np.int64] | None = None) -> list[Indices]:
    """Merge the clients of each group, in ascending order of groups; with None merge all.

    A sample of several clients is there once.
    """
    owner = np.zeros(len(parts), np.int64) if members is None else members
    return [
        np.unique(
            np.concatenate([parts[client] for client in np.flatnonzero(owner == number).tolist()])
        ).astype(np.int64)
        for number in np.unique(owner)
    ]


def client_groups(clients: int, groups: int) -> NDArray[np.int64]:
    """Return each client's group (clients,): consecutive, of lengths that differ by at most one.

    Raises:
        DataError: If there are fewer clients than groups.
    """
    if clients < groups:
        raise DataError(
            f"clients={clients}: grouped has {groups} groups to fill; "
            f"set partition.clients={groups}."
        )
    return np.repeat(np.arange(groups), _even_shares(clients, groups)).astype(np.int64)


def _spread_classes(
    classes: int, clients: int, k: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return the clients that hold each class, in random order."""
    held = np.zeros((clients, classes), dtype=bool)
    for client in rng.permutation(clients):
        # The k least-held classes, with random ties, keep the numbers of holders even.
        order = np.lexsort((rng.random(classes), held.sum(axis=0)))
        held[client, order[:k]] = True
    return [rng.permutation(np.flatnonzero(column)) for column in held.T]


def _even_shares(size: int, parts: int) -> list[int]:
    return [size // parts + (part < size % parts) for part in range(parts)]


def _sorted(parts: Sequence[NDArray[np.int64]]) -> list[Indices]:
    return [np.sort(part).astype(np.int64) for part in parts]
