"""Figures that look the same everywhere, whatever names and settings they meet."""

import io
import logging
import os
import subprocess
import sys
import time

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from coterie.errors import InterruptedRunError
from coterie.evaluation import canvas
from coterie.evaluation.canvas import blank, drawing, guarded, label, save, tick_step, ticks
from coterie.evaluation.curves_figure import draw_curves
from coterie.evaluation.embedding import embedding_figure
from coterie.evaluation.figures import confusion_figure
from coterie.evaluation.label_distribution import ClassTable, label_distribution_figure
from coterie.studies.comparison_figure import comparison_figure
from coterie.studies.paired import Difference, differences_figure
from coterie.studies.ranks import Ranks, ranks_figure

CAPTURED = {"capture_output": True, "text": True}
NASTY = ("cost_$10_to_$20", "$", r"\frac{1}{0", "a^b_c", "_hidden", "%", "line\nbreak", "\udcff x")


def figures(folder, names, samples=60):
    """Draw each figure that shows names of classes."""
    count = len(names)
    labels = np.resize(np.arange(count), max(samples, 2 * count))
    x = np.random.default_rng(0).normal(size=(len(labels), 4))
    label_distribution_figure(
        np.ones((3, count), np.int64), names, folder / "partition.png", names[:3]
    )
    table = np.eye(count, dtype=np.int64) * 4
    confusion_figure(table, names, folder / "confusion.png")
    embedding_figure(x, labels, labels, names, folder / "tsne.png", seed=0)


def compared(folder, names):
    """Draw each figure that shows names of variants."""
    curve = (np.array([[1.0, 2.0], [0.1, 0.3]]), None)
    comparison_figure({"acc": dict.fromkeys(names, curve)}, "round", folder / "round.png")
    pairs = [Difference("acc", names[0], name, 3, 0.1, 0.05, 0.2) for name in names[1:]]
    differences_figure(pairs, folder / "differences.png")
    means = {name: place + 1.0 for place, name in enumerate(names)}
    ranks_figure(Ranks("acc", means, 2.5, 4), folder / "ranks.png")


def texts(figure):
    return {text.get_text() for text in figure.findobj(mpl.text.Text)}


@pytest.fixture
def kept(monkeypatch):
    """The figures as they are when written."""
    found = []
    original = canvas.Drawing.savefig
    monkeypatch.setattr(
        canvas.Drawing, "savefig", lambda f, *a, **k: found.append(f) or original(f, *a, **k)
    )
    return found


def test_any_name_is_drawn_as_it_is(tmp_path, kept):
    figures(tmp_path, NASTY)
    shown = set().union(*map(texts, kept))
    assert {"cost_$10_to_$20", r"\frac{1}{0", "a^b_c", "_hidden", "line?break", "? x"} <= shown
    legends = [axes.get_legend() for figure in kept for axes in figure.axes if axes.get_legend()]
    assert legends
    for legend in legends:
        assert sum("_hidden" in text.get_text() for text in legend.get_texts()) == 1


def test_any_name_of_a_variant_is_drawn_whole(tmp_path, kept):
    names = (*NASTY, "a method with quite a long name of its own", "_b")
    compared(tmp_path, names)
    for figure in kept:
        shown = " ".join(texts(figure))
        whole = shown.replace("\n", " ")
        assert all(label(name) in shown or name in whole for name in names)
        figure.draw_without_rendering()
        width, height = figure.bbox.size
        for text in figure.findobj(mpl.text.Text):
            if any(sign.isalpha() for sign in text.get_text()):  # ticks beyond the axes are hidden
                box = text.get_window_extent()
                assert -1 <= box.x0 <= box.x1 <= width + 1, text
                assert -1 <= box.y0 <= box.y1 <= height + 1, text


@pytest.mark.parametrize("draw", [figures, compared])
def test_the_users_settings_bend_no_figure(tmp_path, draw):
    draw(tmp_path / "plain", ("a", "$b_", "c"))
    with mpl.rc_context({"text.usetex": True, "font.size": 40, "axes.facecolor": "black"}):
        draw(tmp_path / "set", ("a", "$b_", "c"))
    for path in sorted((tmp_path / "plain").iterdir()):
        assert path.read_bytes() == (tmp_path / "set" / path.name).read_bytes(), path.name


def test_curves_of_hidden_names_are_named():
    figure = draw_curves({"loss": [(1, 2.0)], "_own": [(1, 1.0)], "_$/acc": [(1, 0.5)]})
    *_, own, scores = figure.axes
    assert own.get_title() == "_own"
    assert [text.get_text() for text in scores.get_legend().get_texts()] == ["_$/acc"]


@pytest.mark.parametrize(
    "settings",
    [
        {"text.usetex": True},
        {"savefig.bbox": "tight", "savefig.dpi": 10, "figure.dpi": 30},
        {"font.family": ["No Such Font"], "font.size": 40, "axes.facecolor": "black"},
        {"text.parse_math": True, "axes.formatter.use_mathtext": True},
        {"figure.autolayout": True},
    ],
)
def test_the_users_settings_bend_no_figure_and_stay(tmp_path, settings):
    confusion_figure(np.eye(2, dtype=np.int64), ("a_$1", "b"), tmp_path / "plain.png")
    with mpl.rc_context(settings):
        confusion_figure(np.eye(2, dtype=np.int64), ("a_$1", "b"), tmp_path / "set.png")
        for key, value in settings.items():
            assert mpl.rcParams[key] == value
    assert (tmp_path / "set.png").read_bytes() == (tmp_path / "plain.png").read_bytes()


def test_a_figure_is_shown_in_a_notebook_as_it_was_drawn():
    figure = draw_curves({"$x_": [(1, 2.0), (2, 1.0)]})
    figure._repr_png_()  # its layout settles with the first drawing
    plain = figure._repr_png_()
    with mpl.rc_context({"text.usetex": True}):
        assert figure._repr_png_() == plain


def test_a_backend_that_is_not_there_ends_nothing(tmp_path):
    """Old shells set MPLBACKEND=Qt4Agg."""
    code = (
        "import numpy as np\nfrom pathlib import Path\n"
        "from coterie.evaluation.figures import confusion_figure\n"
        f"confusion_figure(np.eye(2, dtype=np.int64), 'ab', Path({str(tmp_path / 'c.png')!r}))"
    )
    paths = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)), "MPLBACKEND": "Qt4Agg"}
    done = subprocess.run([sys.executable, "-c", code], env=paths, check=False, **CAPTURED)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "c.png").stat().st_size


def test_scripts_that_the_font_lacks_are_told_once(tmp_path, caplog, recwarn):
    canvas._tell_of_glyphs.cache_clear()
    names = ("𓀀𓀁", "ᚠᚢ", "ꦲꦤ", "plain")
    with caplog.at_level(logging.WARNING):
        figures(tmp_path, names)
        figures(tmp_path, names)
    told = [record.getMessage() for record in caplog.records]
    assert [line.partition(",")[0] for line in told] == [
        "Some characters of names are in no installed font"
    ]
    assert not [w for w in recwarn if "Glyph" in str(w.message)]


def test_two_thousand_classes_are_fast_and_legible(tmp_path, kept):
    names = [f"class {number} with a long name that never ends" * 5 for number in range(2000)]
    begun = time.process_time()
    figures(tmp_path, names, samples=2000)
    assert time.process_time() - begun < 20  # 66 s when every class had a tick
    for figure in kept:
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                assert len(axis.get_ticklabels()) <= 60
                assert all(len(text.get_text()) <= 32 for text in axis.get_ticklabels())
    for name in ("partition", "confusion", "tsne"):
        with Image.open(tmp_path / f"{name}.png") as image:
            pixels = np.asarray(image.convert("L"))
        middle = pixels[len(pixels) // 4 : -len(pixels) // 4, pixels.shape[1] // 3 :]
        assert middle.std() > 5, name  # something is drawn there


def test_a_figure_that_fails_is_told(tmp_path):
    told, path = [], tmp_path / "f.png"
    for error in (ValueError("no such glyph"), MemoryError(), RuntimeError("Failed to process")):
        with guarded(path, told.append):
            path.write_bytes(b"half")
            raise error
        assert not path.exists()
    assert told[0] == f"{path}: the figure could not be drawn (no such glyph); all else goes on."
    assert "(MemoryError)" in told[1]
    with pytest.raises(InterruptedRunError), guarded(path, told.append):
        raise InterruptedRunError("SIGTERM came.")
    with pytest.raises(KeyboardInterrupt), guarded(path, told.append):
        raise KeyboardInterrupt


def test_a_comparisons_labels_show_the_values_of_several_keys(tmp_path, kept):
    name = "learning_rate=0.00121 temperature=0.3 participation=0.5"
    compared(tmp_path, (name, "short"))
    shown = texts(kept[0])
    assert "learning_rate=0.00121\ntemperature=0.3\nparticipation=0.5" in shown
    assert "short" in shown


def test_the_line_below_may_hold_anything(tmp_path):
    @drawing()
    def draw():
        save(blank(3, 2), tmp_path / "f.png", "a $x_ in \udcff 数据 seed 0")

    draw()
    with Image.open(tmp_path / "f.png") as image:
        assert image.info["Description"] == "a $x_ in ? 数据 seed 0"


def test_settings_come_back_after_an_error_and_between_drawings():
    before = dict(mpl.rcParams)
    with pytest.raises(ZeroDivisionError), drawing():
        _ = 1 / 0
    with drawing(), drawing():
        assert not mpl.rcParams["text.parse_math"]
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(
    ("count", "step"), [(1, 1), (40, 1), (41, 2), (2000, 50), (50_000, 2000), (0, 1)]
)
def test_ticks_are_a_round_step_apart(count, step):
    assert tick_step(count, 40) == step
    assert len(ticks(range(count), 40)[0]) <= 40


def test_a_name_is_one_short_line():
    assert label("a" * 99) == "a" * 31 + "…"
    assert label("a\x1b[31m\tb") == "a?[31m?b"


def test_a_table_for_the_terminal_shows_any_name():
    table = ClassTable(np.ones((2, 3), np.int64), ("\udcff", "a\nb", "[red]x"), ("\udce4", "b"))
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(table)
    assert {"?", "a?b", "[red]x", "b"} <= set(stream.getvalue().split())


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_figure_takes_the_place_of_a_link_and_leaves_what_it_names(tmp_path, link):
    mine, path = tmp_path / "mine.txt", tmp_path / "figure.png"
    mine.write_text("mine")
    link(mine, path)
    save(blank(2, 2), path)
    assert mine.read_text() == "mine"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not path.is_symlink()
