import subprocess
import sys
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image
from sklearn.datasets import load_digits, make_blobs

from coterie.errors import DataError
from coterie.evaluation import curves_figure as curves_module
from coterie.evaluation import embedding, figures
from coterie.evaluation.canvas import COLOURS, style
from coterie.evaluation.figures import confusion_figure, curves_figure, embedding_figure

NAMES = ("cat", "dog", "owl")
TABLE = np.array([[1, 8, 0], [0, 0, 6], [9, 0, 2]])  # clusters 0, 1, 2 are dog, owl, cat


@pytest.fixture
def drawn(monkeypatch):
    """The figures as they are when written."""
    kept = []

    def watch(module):
        original = module.save
        monkeypatch.setattr(module, "save", lambda f, *to: kept.append(f) or original(f, *to))

    for module in (figures, curves_module, embedding):
        watch(module)
    return kept


def box(artist):
    return artist.get_window_extent()


@pytest.mark.parametrize("number", range(3))
def test_every_figure_is_a_png_at_its_path(tmp_path, number):
    path = tmp_path / "new" / "folder" / "figure.png"
    x = np.random.default_rng(0).normal(size=(12, 3))
    a = np.arange(12) % 3
    draw = (
        lambda: confusion_figure(TABLE, NAMES, path),
        lambda: curves_figure({"loss": [(1, 2.0), (2, 1.0)]}, path),
        lambda: embedding_figure(x, a, a, NAMES, path, seed=0),
    )[number]
    assert draw() == path
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert min(image.size) >= 500
        assert np.asarray(image.convert("L")).std() > 5


def test_importing_the_figures_does_not_import_pyplot():
    code = "import sys, coterie.evaluation.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    paths = {"PYTHONPATH": ":".join(entry for entry in sys.path if entry), "OMP_NUM_THREADS": "1"}
    assert subprocess.run([sys.executable, "-c", code], env=paths, check=False).returncode == 0


def test_confusion_rows_are_classes_and_columns_matched_clusters(tmp_path, drawn):
    confusion_figure(TABLE, NAMES, tmp_path / "c.png")
    axes, bar = drawn[0].axes
    shares = axes.images[0].get_array()
    expected = np.array([[9, 1, 0], [0, 8, 0], [2, 0, 6]]) / np.array([[10], [8], [8]])
    np.testing.assert_allclose(shares, expected)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["2", "0", "1"]
    assert [text.get_text() for text in axes.get_yticklabels()] == list(NAMES)
    assert axes.get_title() == "ACC 88.5% after matching"  # 23 of 26
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert cells == {(0, 0): "9", (1, 0): "1", (1, 1): "8", (0, 2): "2", (2, 2): "6"}
    assert bar.get_ylabel() == "share of the class"


def test_confusion_puts_unmatched_clusters_last_beyond_a_line(tmp_path, drawn):
    table = np.array([[0, 1], [5, 0], [0, 0], [0, 4]])
    confusion_figure(table, NAMES[:2], tmp_path / "c.png")
    axes = drawn[0].axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "3", "0", "2"]
    np.testing.assert_allclose(axes.images[0].get_array(), [[1, 0, 0, 0], [0, 0.8, 0.2, 0]])
    assert axes.lines[0].get_xdata() == [1.5, 1.5]
    assert axes.get_title().startswith("ACC 90.0%")


def test_confusion_of_a_class_without_samples_and_of_fewer_clusters(tmp_path, drawn):
    confusion_figure(np.array([[0, 4, 0], [3, 1, 0]]), NAMES, tmp_path / "c.png")
    axes = drawn[0].axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), [[1, 0], [0.2, 0.8], [0, 0]])
    assert not axes.lines


def test_confusion_of_many_classes_stays_a_page(tmp_path, drawn):
    table = np.eye(100, dtype=np.int64)
    confusion_figure(table, [f"class {i}" for i in range(100)], tmp_path / "c.png")
    assert max(drawn[0].get_size_inches()) < 18
    assert not drawn[0].axes[0].texts


def test_confusion_refuses_names_that_do_not_fit(tmp_path):
    with pytest.raises(DataError, match="2 class names for 3 classes"):
        confusion_figure(TABLE, NAMES[:2], tmp_path / "c.png")


SERIES = {
    "representation/loss": [(1, 6.0), (2, 5.0), (3, -1.0), (4, -2.0)],
    "clustering/acc": [(2, 0.5), (4, 0.7)],
    "clustering/nmi": [(2, 0.4), (4, 0.6)],
    "empty": [],
}


def test_curves_go_to_their_panels_with_their_values(tmp_path, drawn):
    curves_figure(SERIES, tmp_path / "c.png")
    loss, score = drawn[0].axes
    assert (loss.get_ylabel(), score.get_ylabel()) == ("loss", "score")
    assert [line.get_label() for line in loss.lines] == ["representation/loss"]
    assert [line.get_label() for line in score.lines] == ["clustering/acc", "clustering/nmi"]
    np.testing.assert_array_equal(loss.lines[0].get_xydata(), SERIES["representation/loss"])
    np.testing.assert_array_equal(score.lines[1].get_xydata(), SERIES["clustering/nmi"])
    assert score.get_xlabel() == "round"
    drawn[0].draw_without_rendering()  # lay it out again at the figure's own resolution
    assert box(score.get_legend()).x0 >= box(score).x1
    assert box(score.get_legend()).x1 <= drawn[0].bbox.x1


def test_each_stage_has_its_own_axis_of_losses_and_a_mark_in_the_scores(tmp_path, drawn):
    curves_figure(SERIES, tmp_path / "c.png", {"representation": 1, "clustering": 3})
    first, second, score = drawn[0].axes
    assert [a.get_title() for a in (first, second)] == [
        "loss of representation",
        "loss of clustering",
    ]
    np.testing.assert_array_equal(first.lines[0].get_xydata(), [(1, 6), (2, 5)])
    np.testing.assert_array_equal(second.lines[0].get_xydata(), [(3, -1), (4, -2)])
    assert first.get_ylim()[0] > second.get_ylim()[1]
    np.testing.assert_array_equal(score.lines[0].get_xydata(), SERIES["clustering/acc"])
    assert [line.get_xdata()[0] for line in score.lines[2:]] == [2.5]  # none before the first
    places = {text.get_text(): text.get_position()[0] for text in score.texts}
    left = score.get_xlim()[0]
    assert 1 < left < 2  # the scores begin in round 2: the first name does not stand left of them
    assert places == {"representation": left, "clustering": 2.5}


def test_stages_before_the_first_score_are_named_side_by_side(tmp_path, drawn):
    late = SERIES | {"clustering/acc": [(9, 0.5)], "clustering/nmi": [(9, 0.4)]}
    curves_figure(late, tmp_path / "c.png", {"representation": 1, "clustering": 3})
    score = drawn[0].axes[-1]
    places = {text.get_text(): text.get_position()[0] for text in score.texts}
    assert places == {"representation": 0.5, "clustering": 2.5}
    assert score.get_xlim()[0] == 0.5


def test_a_metric_of_the_users_own_has_an_axis_to_itself(tmp_path, drawn):
    own = {"perplexity": [(1, 300.0), (2, 120.0)], "val/my_loss": [(2, 0.1)]}
    curves_figure(SERIES | own, tmp_path / "c.png")
    loss, own_loss, perplexity, score = drawn[0].axes  # scores of validation come first
    assert [axes.get_title() for axes in (perplexity, own_loss)] == ["perplexity", "val/my_loss"]
    np.testing.assert_array_equal(perplexity.lines[0].get_xydata(), own["perplexity"])
    assert len(loss.lines) == len(perplexity.lines) == len(own_loss.lines) == 1
    assert len(score.lines) == 2


def test_a_mean_over_an_epoch_that_repeats_its_metric_is_left_out(tmp_path, drawn):
    rate, other = [(1, 300.0), (2, 120.0)], [(1, 300.0), (2, 1.0)]
    own = {"a": rate, "a_epoch": rate, "b": rate, "b_epoch": other}
    curves_figure(own, tmp_path / "c.png")
    assert [axes.get_title() for axes in drawn[0].axes] == ["a", "b", "b_epoch"]


def test_of_many_own_metrics_some_are_drawn(tmp_path, drawn):
    curves_figure({f"m{n}": [(1, float(n))] for n in range(50)}, tmp_path / "c.png")
    assert len(drawn[0].axes) == 9


def test_a_single_loss_stands_above_the_scores_of_its_rounds(tmp_path, drawn):
    curves_figure(SERIES | {"clustering/acc": [(2, 0.5), (9, 0.7)]}, tmp_path / "c.png")
    loss, score = drawn[0].axes
    assert loss.get_xlim() == score.get_xlim()
    assert loss.get_xlim()[1] > 9


def test_a_stage_without_a_loss_has_no_axis(tmp_path, drawn):
    curves_figure({"loss": [(2, 1.0)]}, tmp_path / "c.png", {"one": 0, "two": 1, "three": 5})
    assert [axes.get_title() for axes in drawn[0].axes] == ["loss of two"]


def test_what_was_run_is_below_the_figure_and_in_the_file(tmp_path, drawn):
    curves_figure(SERIES, tmp_path / "c.png", about="FedMCC on Digits, seed 0")
    assert drawn[0].get_supxlabel() == "FedMCC on Digits, seed 0"
    with Image.open(tmp_path / "c.png") as image:
        assert image.text["Description"] == "FedMCC on Digits, seed 0"


def test_one_kind_of_curve_has_one_panel(tmp_path, drawn):
    curves_figure({"knn/acc": [(1, 0.5)]}, tmp_path / "c.png")
    assert [axes.get_ylabel() for axes in drawn[0].axes] == ["score"]


def test_no_curve_is_refused(tmp_path):
    with pytest.raises(DataError, match="1 series without a point"):
        curves_figure({"loss": []}, tmp_path / "c.png")


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(90, 6, centers=3, cluster_std=0.5, random_state=2)


def points(axes):
    """Legend name to (positions, colour) of each group."""
    return {
        group.get_label(): (np.asarray(group.get_offsets()), to_hex(group.get_facecolor()[0]))
        for group in axes.collections
    }


def test_clusters_have_the_colours_of_their_classes(tmp_path, drawn, blobs):
    x, y = blobs
    renamed = np.array([2, 0, 1])[y]
    embedding_figure(x, y, renamed, NAMES, tmp_path / "e.png", seed=0)
    truth, cluster = (points(axes) for axes in drawn[0].axes)
    assert list(truth) == ["cat", "dog", "owl"]
    assert list(cluster) == ["2 (cat)", "0 (dog)", "1 (owl)"]
    for (there, colour), (here, same) in zip(truth.values(), cluster.values(), strict=True):
        np.testing.assert_array_equal(there, here)
        assert colour == same
    assert [colour for _, colour in truth.values()] == list(COLOURS[:3])
    for axes in drawn[0].axes:
        assert box(axes.get_legend()).x0 >= box(axes).x1


def test_the_map_keeps_neighbours_together(tmp_path, drawn, blobs):
    x, y = blobs
    embedding_figure(x, y, None, NAMES, tmp_path / "e.png", seed=0)
    assert [axes.get_title() for axes in drawn[0].axes] == ["true class"]
    groups = [place for place, _ in points(drawn[0].axes[0]).values()]
    spread = max(np.linalg.norm(place - place.mean(0), axis=1).max() for place in groups)
    apart = min(np.linalg.norm(a.mean(0) - b.mean(0)) for a, b in pairwise(groups))
    assert apart > 2 * spread


def test_the_seed_decides_sample_and_map(tmp_path, drawn):
    x, y = load_digits(return_X_y=True)
    names = [str(digit) for digit in range(10)]
    for seed in (0, 0, 1):
        embedding_figure(x, y, None, names, tmp_path / "e.png", seed=seed, sample=60)
    first, again, other = (points(figure.axes[0]) for figure in drawn)
    assert sum(len(place) for place, _ in first.values()) == 60
    for name, (place, _) in first.items():
        np.testing.assert_array_equal(place, again[name][0])
    assert any(len(first[n][0]) != len(other.get(n, ((),))[0]) for n in first)


def test_without_labels_clusters_are_drawn_alone(tmp_path, drawn, blobs):
    x, y = blobs
    embedding_figure(x[:, :1], None, y, (), tmp_path / "e.png", seed=0)  # one dimension will do
    assert [axes.get_title() for axes in drawn[0].axes] == ["cluster"]
    assert list(points(drawn[0].axes[0])) == ["0", "1", "2"]


def test_surplus_clusters_look_like_no_class(tmp_path, drawn, blobs):
    x, y = blobs
    split = np.where(np.arange(90) % 3 == 0, 3, y)
    embedding_figure(x, y, split, NAMES, tmp_path / "e.png", seed=0)
    truth, cluster = (points(axes) for axes in drawn[0].axes)
    surplus = [name for name in cluster if "(" not in name]
    assert surplus == ["3"]
    assert cluster["3"][1] not in {colour for _, colour in truth.values()}


def test_many_groups_have_neither_names_nor_legend(tmp_path, drawn):
    x = np.random.default_rng(0).normal(size=(42, 3))
    embedding_figure(x, None, np.arange(42) % 21, (), tmp_path / "e.png", seed=0)
    axes = drawn[0].axes[0]
    assert axes.get_legend() is None
    assert not axes.texts
    assert len({style(group) for group in range(60)}) == 60


def test_the_palette_is_petroffs():
    assert [to_hex(colour) for colour in mpl.color_sequences["petroff10"]] == list(COLOURS)


def test_embedding_refuses_vectors_that_are_not_finite(tmp_path):
    vectors, groups = np.full((6, 2), np.nan), np.zeros(6, int)
    with pytest.raises(DataError, match="6 of 6 embeddings are not finite"):
        embedding_figure(vectors, groups, groups, NAMES, tmp_path / "e.png", seed=0)


def test_with_labels_the_title_says_what_stands_behind_a_cluster(tmp_path, drawn, blobs):
    x, y = blobs
    embedding_figure(x[:, :1], y, (y + 1) % 3, ("a", "b", "c"), tmp_path / "e.png", seed=0)
    panel = drawn[0].axes[1]
    assert panel.get_title() == "cluster (and its class)"
    assert {text.get_text() for text in panel.get_legend().texts} == {"1 (a)", "2 (b)", "0 (c)"}
