"""Counts, the table's fit into 80 columns, and the figure's pixels."""

import io
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from coterie.contract.data import DataArrays
from coterie.datamodules.partitions import iid
from coterie.evaluation import label_distribution as module
from coterie.evaluation.label_distribution import (
    ClassTable,
    class_spread,
    classes_held,
    label_distribution_figure,
)

CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def render(table):
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(table)
    return stream.getvalue()


def test_a_table_of_2000_clients_is_cut():
    lines = render(ClassTable(np.ones((2000, 10), np.int64))).splitlines()
    assert len(lines) < 30
    assert max(map(len, lines)) <= 80
    assert "2000 clients" in lines[-1]


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_narrow_terminal_has_the_largest_classes_and_no_cut_number(width):
    stream, counts = io.StringIO(), np.full((3, 10), 123)
    Console(file=stream, width=width, color_system=None).print(ClassTable(counts))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[2].split()[:2] == ["0", "1230"]
    if width == 60:
        assert lines[2].split()[2:] == ["123"] * 10
    if width == 40:
        assert lines[0].split()[2:] == ["classes", "largest", "classes"]


def with_labels(labels, classes):
    names = tuple(map(str, range(classes)))
    return DataArrays(name="d", samples=np.zeros((len(labels), 1)), labels=labels, classes=names)


def test_class_counts_equal_a_slow_count():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 200)
    parts = iid(200, 7, 0)
    counts, _ = class_spread(with_labels(labels, 8), parts)
    assert counts.dtype == np.int64
    slow = [[sum(int(labels[row] == k) for row in part) for k in range(8)] for part in parts]
    np.testing.assert_array_equal(counts, slow)


def test_an_empty_client_counts_nothing():
    parts = [np.array([], dtype=np.int64), np.array([0, 1])]
    counts, _ = class_spread(with_labels(np.array([0, 1]), 2), parts)
    np.testing.assert_array_equal(counts, [[0, 0], [1, 1]])


@pytest.mark.parametrize("clients", [1, 5, 20, 21, 100, 1000])
@pytest.mark.parametrize("classes", [2, 10, 20, 100])
@pytest.mark.parametrize("scale", [10, 70_000])
def test_the_table_shows_whole_numbers_in_80_columns(clients, classes, scale):
    counts = np.random.default_rng(1).integers(1, scale, (clients, classes))
    text = render(ClassTable(counts, [f"a rather long name {k}" for k in range(classes)]))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert text.split()[:2] == ["client", "samples"]
    first = next(line for line in lines if line.split()[:1] == ["0"])
    total = int(counts[0].sum())
    assert first.split()[1] == (str(total) if total < 99_999.5 else f"{total / 1000:.0f}k")
    assert f"{clients} clients, {counts.sum():,} samples" in text


def test_the_line_below_a_narrow_table_is_one_line():
    lines = render(ClassTable(np.full((3, 2), 50), ("up", "lie"))).splitlines()
    assert lines[-1].strip() == "3 clients, 300 samples"


def test_every_count_of_ten_classes_is_shown_and_zero_is_a_dot():
    counts = np.diag(np.arange(1, 11) * 1000)
    rows = [line.split() for line in render(ClassTable(counts, CIFAR)).splitlines()]
    body = [row for row in rows if row and row[0].isdigit() and row[1] != "clients,"]
    assert [row[2:].index(str(1000 * (k + 1))) for k, row in enumerate(body)] == list(range(10))
    assert all(row.count("·") == 9 for row in body)
    headers = ["airp…", "auto…", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    assert rows[0] == ["client", "samples", *headers]


def test_the_middle_of_many_clients_is_their_mean():
    counts = np.zeros((100, 2), dtype=np.int64)
    counts[8:92] = [[4, 7]]
    rows = [line.split() for line in render(ClassTable(counts, ("a", "b"))).splitlines()]
    assert ["mean", "of", "84", "11", "4", "7"] in rows
    assert [row[0] for row in rows if row][2:11] == [*map(str, range(8)), "mean"]


def test_many_classes_name_the_largest():
    counts = np.zeros((2, 100), dtype=np.int64)
    counts[0, [3, 50, 99]] = [5, 40, 12]
    counts[1] = 10
    text = render(ClassTable(counts, [f"c{k}" for k in range(100)]))
    assert text.split()[:5] == ["client", "samples", "classes", "largest", "classes"]
    assert "c50: 40, c99: 12, c3: 5" in text
    assert next(line for line in text.splitlines() if "c50" in line).split()[:3] == ["0", "57", "3"]


def test_names_that_shorten_to_the_same_become_numbers():
    names = [f"category {k}" for k in range(10)]
    assert render(ClassTable(np.ones((2, 10), np.int64), names)).split()[2:12] == list("0123456789")


@pytest.mark.parametrize(("clients", "classes"), [(5, 10), (30, 10), (100, 10), (100, 100)])
def test_the_figure_is_dark_where_the_samples_are(tmp_path, clients, classes):
    counts = np.zeros((clients, classes), dtype=np.int64)
    counts[: clients // 2] = 90
    path = tmp_path / "labels.png"
    label_distribution_figure(counts, [], path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        pixels = np.asarray(image.convert("RGB")).astype(int)
    assert 600 <= pixels.shape[1] <= 1800
    # Blue where half of the clients (the left half) have samples: red is low, blue is high.
    blue = (pixels[..., 2] > pixels[..., 0] + 60).mean(axis=0)
    plot = np.flatnonzero(blue > 0.5)
    assert plot.min() < pixels.shape[1] * 0.35
    bar = pixels.shape[1] * 0.8
    assert plot[plot < bar].max() < pixels.shape[1] * 0.6


@pytest.mark.parametrize("clients", [2, 3, 4])
def test_long_names_of_clients_do_not_overlap(tmp_path, monkeypatch, clients):
    kept = []
    monkeypatch.setattr(module, "save", lambda figure, *to, **how: kept.append(figure))
    names = [f"a_long_name_of_{number}" for number in range(clients)]
    label_distribution_figure(np.ones((clients, 2), np.int64), ("a", "b"), tmp_path / "f", names)
    kept[0].draw_without_rendering()
    places = [text.get_window_extent() for text in kept[0].axes[0].get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(places))
    assert kept[0].axes[0].get_window_extent().height > 100


def test_a_client_has_a_class_by_one_sample_or_by_a_hundredth() -> None:
    counts = np.array([[1, 0, 199], [50, 50, 0], [0, 0, 0]])
    found = classes_held(counts)
    assert found == {"classes": 4 / 3, "classes_1%": 1.0, "imbalance": (199 + 1 + 0) / 3}
