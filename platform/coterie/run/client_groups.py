"""A method's groups of clients: scores by round, `client_groups.csv` and a figure."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.clustering.contingency import contingency
from coterie.config.schema import RunConfig
from coterie.contract.data import Indices, KnowsGroups
from coterie.contract.method import GroupsClients, Method
from coterie.contract.phase import ServerState
from coterie.evaluation.clustering_metrics import ari
from coterie.evaluation.group_figure import group_figure
from coterie.tracking.atomic import write_text_atomically

GROUP = "groups"
"""The name of these scores' group."""


@dataclass(frozen=True, kw_only=True)
class ClientGroups:
    """A method's groups of clients, compared with the true groups where these are known.

    Attributes:
        truth: Each client's true group, where the partition knows it.
    """

    method: GroupsClients
    truth: Indices | None

    @classmethod
    def of(cls, config: RunConfig, method: Method) -> "ClientGroups | None":
        """Return the groups of a run; None if its method does not group clients."""
        if not isinstance(method, GroupsClients):
            return None
        partition = config.partition
        truth = partition.membership() if isinstance(partition, KnowsGroups) else None
        return cls(method=method, truth=truth)

    def scores(self, server: ServerState) -> dict[str, float]:
        """Score the last round's groups over the clients that took part.

        Returns:
            "used", the number of groups with clients; "largest", the largest group's share of the
            clients; and, where the true groups are known, "ari".
        """
        rows = list(self._history(server).values())
        if not rows:
            return {}
        last = np.array(rows[-1])
        here = np.flatnonzero(last >= 0)
        counts = np.bincount(last[here])
        found = {
            "used": float(np.count_nonzero(counts)),
            "largest": float(counts.max(initial=0) / max(1, len(here))),
        }
        if self.truth is None or not len(here):
            return found
        truth = self.truth[here]
        table = contingency(last[here], truth, len(counts), int(self.truth.max()) + 1)
        return {**found, "ari": ari(table)}

    def now(self, server: ServerState) -> Mapping[int, int]:
        """Return each client's current group."""
        return self.method.members(server)

    def members(self, server: ServerState) -> dict[int, list[int]]:
        """Return each group's current clients, in order of the groups."""
        now = self.now(server)
        found: dict[int, list[int]] = {group: [] for group in sorted(set(now.values()))}
        for client, group in sorted(now.items()):
            found[group].append(client)
        return found

    def write(self, path: Path, server: ServerState) -> None:
        """Write a table with the columns round, client, group and, if known, true_group."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["round", "client", "group"] + ["true_group"] * (self.truth is not None))
        for round_, row in self._history(server).items():
            for client, group in enumerate(row):
                if group >= 0:
                    known = [] if self.truth is None else [int(self.truth[client])]
                    table.writerow([round_, client, group, *known])
        write_text_atomically(path, text.getvalue())

    def draw(self, path: Path, server: ServerState, about: str = "") -> Path | None:
        """Draw the groups over the rounds; None if there is nothing to draw."""
        history = self._history(server)
        return group_figure(history, self.truth, path, about) if history else None

    def _history(self, server: ServerState) -> Mapping[int, Sequence[int]]:
        return self.method.client_groups(server)
