"""Partitions as components: what they pass on, what they refuse, and how they say it."""

import numpy as np
import pytest
from pydantic import ValidationError

from coterie.config.component import parse_component
from coterie.contract.data import DataArrays
from coterie.datamodules import partitions
from coterie.datamodules.dirichlet import dirichlet
from coterie.datamodules.partition_configs import (
    IID,
    ByClient,
    ClassBlocks,
    Dirichlet,
    Grouped,
    KClasses,
    PMixture,
)
from coterie.errors import DataError
from coterie.evaluation.label_distribution import client_names

LABELS = np.repeat(np.arange(10), 120)
SIZE = len(LABELS)
UNKNOWN = np.where(np.arange(SIZE) < 3, -1, LABELS)
GROUPS = [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]


def data_with(labels, size=None):
    samples = np.zeros((len(labels) if size is None else size, 1), np.float32)
    return DataArrays(name="data", samples=samples, labels=labels)


@pytest.mark.parametrize(
    ("component", "expected"),
    [
        (IID(clients=7), lambda: partitions.iid(SIZE, 7, 3)),
        (ClassBlocks(clients=5), lambda: partitions.class_blocks(LABELS, 5)),
        (PMixture(clients=10, p=0.5), lambda: partitions.p_mixture(LABELS, 10, 0.5, 3)),
        (Dirichlet(clients=4, alpha=0.5), lambda: dirichlet(LABELS, 4, 0.5, 3)),
        (
            Dirichlet(clients=4, alpha=0.5, equal_sizes=True, min_samples=9),
            lambda: dirichlet(LABELS, 4, 0.5, 3, equal_sizes=True, min_samples=9),
        ),
        (KClasses(clients=10, k=3), lambda: partitions.k_classes(LABELS, 10, 3, 3)),
        (
            Grouped(clients=6),
            lambda: partitions.grouped(LABELS, 6, GROUPS, (20, 20, 5, 5), 3),
        ),
    ],
)
def test_components_pass_their_keys_on(component, expected):
    for left, right in zip(component.split(data_with(LABELS), 3), expected(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_iid_needs_no_labels():
    assert [len(part) for part in IID(clients=3).split(data_with(None, 8), 0)] == [3, 3, 2]


SITES = np.repeat(np.arange(5), [9, 1, 2, 4, 1])


@pytest.mark.parametrize(
    ("smallest", "names"),
    [
        (1, ("a", "b", "c", "d", "e")),
        (2, ("a", "c", "d", "b + e")),
        (3, ("a", "d", "b + c + e")),
        (5, ("a", "b + c + d + e")),
        (10, ("a + b + c + d + e",)),
        (99, ("a + b + c + d + e",)),
    ],
)
def test_small_clients_are_joined_and_named(smallest, names):
    samples = np.zeros((len(SITES), 1), np.float32)
    data = DataArrays(name="data", samples=samples, owners=SITES, owner_names=tuple("abcde"))
    parts = ByClient(smallest=smallest).split(data, 0)
    assert client_names(data, parts) == names
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(SITES)))
    assert all(np.array_equal(part, np.unique(part)) for part in parts)


def test_merged_groups_have_the_same_samples():
    apart = Grouped(clients=7).split(data_with(LABELS), 3)
    groups = Grouped(clients=7, merge="groups")
    members = Grouped(clients=7).membership()
    for group, part in enumerate(groups.split(data_with(LABELS), 3)):
        own = np.concatenate([apart[c] for c in np.flatnonzero(members == group)])
        np.testing.assert_array_equal(part, np.sort(own))
    assert groups.membership().tolist() == [0, 1, 2]
    everybody = Grouped(clients=7, merge="all")
    [part] = everybody.split(data_with(LABELS), 3)
    np.testing.assert_array_equal(part, np.sort(np.concatenate(apart)))
    assert everybody.membership().tolist() == [0]


def test_a_sample_that_clients_share_is_merged_once():
    few = np.repeat(np.arange(10), 20)
    apart = Grouped(clients=30, shared=True).split(data_with(few), 3)
    [part] = Grouped(clients=30, shared=True, merge="all").split(data_with(few), 3)
    assert sum(map(len, apart)) > len(part)
    np.testing.assert_array_equal(part, np.unique(np.concatenate(apart)))


def test_lists_as_yaml_gives_them_are_accepted():
    section = {"clients": 6, "groups": [[0, 1], [1, 2], [2, 3]], "counts": [4, 1]}
    component = parse_component(
        {"target": "coterie.datamodules.partition_configs:Grouped", **section}
    )
    assert component == Grouped(clients=6, groups=((0, 1), (1, 2), (2, 3)), counts=(4, 1))
    np.testing.assert_array_equal(component.membership(), [0, 0, 1, 1, 2, 2])


def test_cp_cfl_groups_are_the_papers():
    parts = Grouped(clients=60).split(data_with(np.repeat(np.arange(10), 1000)), 0)
    assert [len(part) for part in parts] == [50] * 60
    assert np.bincount(Grouped(clients=60).membership()).tolist() == [20, 20, 20]
    groups = [
        set(part // 1000) for part in (np.concatenate(parts[i : i + 20]) for i in (0, 20, 40))
    ]
    assert groups == [{0, 1, 2, 3}, {3, 4, 5, 6}, {6, 7, 8, 9}]


@pytest.mark.parametrize(
    ("component", "labels", "message"),
    [
        (ClassBlocks(clients=2), None, "ClassBlocks needs labels"),
        (PMixture(clients=2, p=0.5), None, "PMixture needs labels"),
        (Dirichlet(clients=2, alpha=1.0), None, "Dirichlet needs labels"),
        (KClasses(clients=2, k=1), None, "KClasses needs labels"),
        (Grouped(clients=3), None, "Grouped needs labels"),
        (IID(clients=SIZE + 1), None, f"clients={SIZE + 1} is more than the {SIZE} samples"),
        (KClasses(clients=SIZE + 1, k=1), LABELS, f"set partition.clients={SIZE} or lower"),
        (ClassBlocks(clients=2), UNKNOWN, f"every sample's label, but 3 of {SIZE} are unknown"),
        (
            ClassBlocks(clients=3),
            LABELS,
            r"clients=3: .* 10 classes .* set partition.clients to one of 1, 2, 5, 10",
        ),
        (ClassBlocks(clients=20), LABELS, r"clients=20: .* 10 classes"),
        (PMixture(clients=9, p=0.5), LABELS, r"clients=9: .* have 10; set partition.clients=10"),
        (
            KClasses(clients=3, k=3),
            LABELS,
            r"clients=3: .* k=3 .* set partition.k=3 and partition.clients=4",
        ),
        (
            KClasses(clients=3, k=11),
            LABELS,
            r"clients=3: .* k=11 .* set partition.k=10 and partition.clients=3",
        ),
        (
            KClasses(clients=121, k=10),
            LABELS,
            "121 clients for the 120 samples of class 0; lower partition.clients",
        ),
        (
            Grouped(clients=2),
            LABELS,
            r"clients=2: grouped has 3 groups to fill; set partition.clients=3",
        ),
        (Grouped(clients=60), LABELS, r"want \d+ samples of class 0, which has 120"),
        (
            Grouped(clients=3, counts=(1, 2)),
            LABELS,
            r"group \[0, 1, 2, 3\] has 4 .*=\[1, 2\] has 2",
        ),
        (Grouped(clients=3, groups=((0, 11),), counts=(1, 2)), LABELS, "class 11, which has 0"),
        (Dirichlet(clients=100, alpha=1e-3), LABELS, r"clients=100 min_samples=2 .* alpha=0.001"),
        (Dirichlet(clients=100, alpha=1.0, min_samples=13), LABELS, "min_samples=13 need more"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_values(component, labels, message):
    with pytest.raises(DataError, match=message) as refusal:
        component.split(data_with(labels, SIZE), 0)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("target", "keys"),
    [
        ("IID", {"clients": 0}),
        ("IID", {"clients": 2, "alpha": 1.0}),
        ("PMixture", {"clients": 2, "p": 1.1}),
        ("Dirichlet", {"clients": 2, "alpha": 0.0}),
        ("Dirichlet", {"clients": 2, "alpha": float("inf")}),
        ("KClasses", {"clients": 2, "k": 0}),
        ("Grouped", {"clients": 3, "groups": [["0", "1"]], "counts": [1, 1]}),
        ("Grouped", {"clients": 3, "counts": [1.5, 1, 1, 1]}),
        ("Grouped", {"clients": 3, "groups": []}),
    ],
)
def test_impossible_values_are_refused_by_the_config(target, keys):
    with pytest.raises(ValidationError):
        parse_component({"target": f"coterie.datamodules.partition_configs:{target}", **keys})
