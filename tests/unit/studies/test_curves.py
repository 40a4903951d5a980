"""Scores along rounds, bytes and modelled seconds; their mean and band; the figure."""

import numpy as np
import pytest
from PIL import Image

from coterie.errors import DataError
from coterie.evaluation.canvas import blank
from coterie.studies.comparison_figure import comparison_figure, label_axis
from coterie.studies.curves import axes_of, band, from_rounds, metrics_of, points
from coterie.tracking.run_records import RunRecord


def run(accs, *, final=None, up=10, link=0.5, label="a", seed=0):
    rows = []
    for number, acc in enumerate(accs, start=1):
        row = {"round": number, "seconds": 9.0, "bytes/up": up, "bytes/down": 1, "loss": 1.0}
        row |= {"bytes/up/encoder": up, "modelled_seconds/up": link, "modelled_seconds/peer": 1.0}
        row |= {"clustering/acc": acc} if acc is not None else {}
        rows.append(row)
    return RunRecord(
        label=label,
        seed=seed,
        status="completed",
        rows=tuple(rows),
        numbers={} if final is None else {"clustering/acc": final},
        scores=() if final is None else ("clustering/acc",),
    )


def test_axes_are_rounds_bytes_and_columns_of_modelled_seconds_or_steps():
    assert axes_of([run([0.1])]) == ["round", "bytes", "modelled_seconds"]
    other = RunRecord(
        label="b",
        seed=0,
        status="completed",
        rows=({"round": 1, "seconds": 1.0, "local_steps": 4},),
    )
    assert axes_of([other]) == ["round", "local_steps"]
    assert axes_of([]) == ["round"]
    assert axes_of([run([0.1], up=0, link=0.0)]) == ["round", "bytes", "modelled_seconds"]


def test_a_column_that_can_name_no_figure_is_no_axis():
    rows = [{"round": 1, f"{'x' * 5000}_bytes": 5, "x_bytes\0": 5, "x_bytes": 5}]
    record = RunRecord(label="a", seed=0, status="completed", rows=tuple(rows))
    assert axes_of([record]) == ["round", "x_bytes"]


def test_the_final_score_ends_the_curve_in_place_of_one_of_a_sample():
    found = points(run([0.1, None, 0.3], final=0.4), "clustering/acc", "round")
    np.testing.assert_array_equal(found, [[1, 3], [0.1, 0.4]])
    # Row 2 has no score, but its bytes count.
    found = points(run([0.1, None, 0.3], final=0.4), "clustering/acc", "bytes")
    np.testing.assert_array_equal(found, [[11, 33], [0.1, 0.4]])
    found = points(run([0.1, None, 0.3]), "clustering/acc", "modelled_seconds")
    np.testing.assert_array_equal(found, [[1.5, 4.5], [0.1, 0.3]])
    found = points(run([0.1, None, 0.3]), "clustering/acc", "modelled_seconds/up")
    np.testing.assert_array_equal(found, [[0.5, 1.5], [0.1, 0.3]])
    assert points(run([None]), "clustering/acc", "round").shape == (2, 0)
    assert points(run([0.1]), "clustering/acc", "no such column").shape == (2, 0)


def test_measurements_after_the_last_traffic_count():
    first, *rest = run([None, 0.7, 0.85, 0.84], final=0.79).rows
    rows = (first, *({**row, "bytes/up": 0, "bytes/down": 0} for row in rest))
    found = RunRecord(
        label="a",
        seed=0,
        status="completed",
        rows=rows,
        numbers={"clustering/acc": 0.79},
        scores=("clustering/acc",),
    )
    np.testing.assert_array_equal(
        points(found, "clustering/acc", "bytes"), [[11, 11, 11], [0.7, 0.85, 0.79]]
    )
    assert from_rounds(found, "bytes/up until clustering/acc 0.8") == 10


def test_how_far_a_run_came_until_a_metric_was_as_high():
    found = run([0.1, None, 0.3, 0.2], final=0.4)
    assert from_rounds(found, "bytes until clustering/acc 0.1") == 11
    assert from_rounds(found, "bytes/up until clustering/acc 0.25") == 30
    assert from_rounds(found, "modelled_seconds until clustering/acc 0.4") == 6.0
    assert from_rounds(found, "bytes until clustering/acc 0.5") is None
    assert from_rounds(found, "clustering/acc") is None
    assert from_rounds(found, "no_such until clustering/acc 0.1") is None


def test_a_study_takes_the_mean_or_best_over_rounds_or_how_far_a_run_came():
    found = run([0.1, None, 0.3, 0.2], final=0.4)
    assert from_rounds(found, "mean of clustering/acc") == pytest.approx(0.2)
    assert from_rounds(found, "mean of no_such") is None
    assert from_rounds(found, "best of clustering/acc") == 0.4  # the final one
    assert from_rounds(run([0.1, 0.9, 0.3], final=0.4), "best of clustering/acc") == 0.9
    assert from_rounds(found, "best of no_such") is None
    assert from_rounds(found, "clustering/acc") is None
    assert from_rounds(found, "bytes until clustering/acc 0.1") == 11


def test_the_band_is_one_sample_deviation_around_the_mean():
    curves = [np.array([[1.0, 2.0], [0.1, 0.5]]), np.array([[1.0, 2.0], [0.3, 0.9]])]
    mean, edges = band(curves)
    np.testing.assert_allclose(mean, [[1, 2], [0.2, 0.7]])
    half = np.array([np.std([0.1, 0.3], ddof=1), np.std([0.5, 0.9], ddof=1)])
    np.testing.assert_allclose(edges, [mean[1] - half, mean[1] + half])
    assert band(curves[:1])[1] is None
    assert band([])[0].shape == (2, 0)


def test_curves_with_other_places_are_joined_linearly_from_where_all_have_begun():
    mean, _ = band([np.array([[0.0, 4.0], [0.0, 4.0]]), np.array([[1.0, 3.0], [3.0, 3.0]])])
    np.testing.assert_allclose(mean, [[1, 3, 4], [2, 3, 3.5]])


def test_a_seed_that_has_ended_keeps_its_last_value_so_that_the_mean_ends_at_the_tables():
    curves = [np.array([[1.0, 15.0], [0.1, 0.9]]), np.array([[1.0, 20.0, 35.0], [0.1, 0.5, 1.0]])]
    mean, edges = band(curves)
    assert mean[:, -1].tolist() == [35, 0.95]
    assert np.diff(edges[:, -1]) == pytest.approx(2 * np.std([0.9, 1.0], ddof=1))


def test_panels_are_final_metrics_that_were_tracked_else_the_loss():
    assert metrics_of([run([0.1], final=0.2)]) == ["clustering/acc"]
    assert metrics_of([run([0.1])]) == ["loss"]
    names = ["clustering/acc", "clustering/nmi", "test/acc", "knn/acc"]
    both = RunRecord(
        label="c",
        seed=0,
        status="completed",
        scores=tuple(names),
        rows=({"round": 1, "clustering/acc": 1.0, "clustering/nmi": 1.0, "test/acc": 1.0},),
    )
    assert metrics_of([both]) == ["clustering/acc", "test/acc", "clustering/nmi"]


def test_the_figure_has_a_line_and_a_band_for_each_in_its_own_colour(tmp_path):
    steep = band([np.array([[1.0, 2.0], [0.1, y]]) for y in (0.5, 0.9)])
    path = comparison_figure({"acc": {"a": steep, "b": steep}}, "bytes", tmp_path / "f" / "x.png")
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    for colour in ((0x3F, 0x90, 0xDA), (0xFF, 0xA9, 0x0E)):
        assert (pixels == colour).all(axis=1).sum() > 50
    with pytest.raises(DataError, match=r"axis bytes: no run has a point to draw"):
        comparison_figure({"acc": {"a": band([])}}, "bytes", tmp_path / "y.png")


def test_seeds_of_one_point_each_are_a_point_at_their_mean():
    once = [np.array([[place], [value]]) for place, value in ((10, 0.2), (14, 0.4))]
    mean, edges = band(once)
    np.testing.assert_allclose(mean, [[12], [0.3]])
    np.testing.assert_allclose(edges, [[0.3 - 0.02**0.5], [0.3 + 0.02**0.5]])


def test_a_single_round_has_whole_numbers_on_its_axis():
    figure = blank(4.0, 3.0)
    axes = figure.subplots()
    axes.plot([1.0], [0.5], marker="o")
    label_axis(axes, "round", "")
    assert [tick for tick in axes.get_xticks() if tick != round(tick)] == []
