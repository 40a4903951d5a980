"""A figure of a comparison that cannot be drawn is told; the tables and other figures are there."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread, imsave

from coterie.studies import report
from coterie.studies.report import write_report
from coterie.tracking.run_records import RunRecord


def record(label, seed, data):
    return RunRecord(
        label=f"{label}_{data}",
        seed=seed,
        status="completed",
        numbers={"clustering/acc": 0.5 + 0.1 * seed},
        scores=("clustering/acc",),
        rows=({"round": 1, "clustering/acc": 0.5}, {"round": 2, "clustering/acc": 0.6}),
    )


@pytest.mark.parametrize("figure", ["comparison_figure", "differences_figure"])
def test_the_rest_of_a_report_is_written(tmp_path, monkeypatch, caplog, figure):
    def fail(*_):
        raise RuntimeError("no such glyph")

    monkeypatch.setattr(report, figure, fail)
    records = [record(label, seed, "digits") for label in "ab" for seed in range(2)]
    _, files = write_report(records, tmp_path)
    assert "the figure could not be drawn (no such glyph); all else goes on." in caplog.text
    assert all(path.stat().st_size for path in files)
    names = {path.name for path in files}
    other = {"comparison_figure": "differences.png", "differences_figure": "round.png"}[figure]
    assert {"table.md", "table.csv", "differences.csv", other} <= names


@pytest.mark.parametrize("labelled", [True, False])
def test_runs_without_scores_or_pairs_have_no_differences(tmp_path, caplog, labelled) -> None:
    keys = {} if labelled else {"numbers": {"bytes/up": 9.0}, "scores": (), "rows": ()}
    records = [replace(record(label, 0, "digits"), **keys) for label in "ab"]
    _, files = write_report(records, tmp_path)
    assert "differences.csv" not in {path.name for path in files}
    assert ("There are no scores to compare, perhaps because" in caplog.text) != labelled


def test_figures_of_representations_stand_side_by_side(tmp_path) -> None:
    records = []
    for number, label in enumerate("abcd"):
        for seed in (0, 1):
            path = tmp_path / f"{label}{seed}.png"
            shade = 0.2 * (number + 1) if seed == 0 else 0.0
            imsave(path, np.full((20, 30, 3), shade))
            records.append(replace(record(label, seed, "digits"), figures={"tsne": path}))
    _, files = write_report(records, tmp_path / "out")
    drawn = next(path for path in files if path.name == "tsne.png")
    shades = np.unique((10 * imread(drawn)[..., 0]).round().astype(int), return_counts=True)
    large = {int(shade) for shade, count in zip(*shades, strict=True) if count > 50_000}
    assert large == {2, 4, 6, 8, 10}
    _, files = write_report(records[:2], tmp_path / "one")
    assert "tsne.png" not in {path.name for path in files}


def test_a_metric_of_rounds_alone_is_drawn_and_not_called_missing(tmp_path, caplog) -> None:
    with_loss = replace(record("a", 0, "digits"), rows=({"round": 1, "loss": 2.0},))
    write_report([with_loss], tmp_path, metrics=["loss", "los"])
    assert (tmp_path / "figures" / "round.png").is_file()
    assert [text.partition(":")[0] for text in caplog.messages] == ["metrics=[los]"]
