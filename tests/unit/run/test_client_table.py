"""The table of clients, of very many."""

from types import SimpleNamespace

import numpy as np

from coterie.contract.phase import ServerState
from coterie.rounds.accounts import ClientAccount
from coterie.rounds.state import RunState
from coterie.run.client_table import client_rows


def rows_of(clients, **state):
    data = SimpleNamespace(owners=None, owner_names=None)
    workload = SimpleNamespace(parts=np.zeros((clients, 2)), node_local_classes=None)
    assembly = SimpleNamespace(data=data, workload=workload)
    return client_rows(assembly, RunState(server=ServerState(slots={}), **state))


def test_of_a_million_clients_those_have_a_row_that_took_part():
    accounts = {999_999: ClientAccount(tasks=2), 5: ClientAccount(failures=1)}
    rows = rows_of(1_000_000, accounts=accounts)
    assert [(row["client"], row["tasks"], row["failures"]) for row in rows] == [
        (5, 0, 1),
        (999_999, 2, 0),
    ]


def test_of_few_clients_each_has_a_row():
    rows = rows_of(3, accounts={1: ClientAccount(tasks=2)})
    assert [(row["client"], row["tasks"]) for row in rows] == [(0, 0), (1, 2), (2, 0)]
