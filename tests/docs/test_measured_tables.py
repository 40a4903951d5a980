"""The tables of pages with measured figures have the figures of their data."""

import csv
import re
from pathlib import Path
from statistics import fmean

import pytest

from tests.benchmarks import sizes

DOCS = Path(__file__).resolve().parents[2] / "docs"
TITLES = {"mnist": "MNIST", "fashionmnist": "Fashion-MNIST", "usps": "USPS"}
METHODS = {
    "concord": "Concord",
    "prototypes": "Prototypes",
    "kmeans": "exact k-means",
    "turtle": "TURTLE",
    "kfed": "k-FED",
    "ffcm": "FFCM",
}
SCORES = ("nmi", "acc")
SAME_AT_EVERY_P = {"concord", "kmeans", "turtle"}


def rows(name: str = "clusters.csv") -> list[dict[str, str]]:
    with (DOCS / "results" / "data" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def table_rows(page: str, *beginnings: str) -> list[list[str]]:
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith(tuple(f"| {beginning}" for beginning in beginnings))
    ]


def test_every_run_of_concord_stands_on_its_page() -> None:
    wanted = {
        (
            TITLES[row["data"]],
            row["seed"],
            f"{float(row['p']):g}",
            *(f"{float(row[key]):.3f}" for key in ("nmi", "kappa", "acc")),
        )
        for row in rows()
        if row["method"] == "concord" and row["data"] in TITLES
    }
    found = {
        tuple(cells)
        for cells in table_rows("results/concord.md", *TITLES.values())
        if cells[1].isdigit() and re.fullmatch(r"[\d.]+", cells[-1])
    }
    assert found == wanted


def test_the_digits_of_every_seed_stand_on_its_page() -> None:
    own = [row for row in rows() if (row["method"], row["data"]) == ("concord", "digits")]
    page = (DOCS / "results" / "concord.md").read_text(encoding="utf-8")
    lines = page.split("## Digits\n")[1].split("\n## ")[0].splitlines()
    shown = [[cell.strip() for cell in line.strip("|").split("|")[:4]] for line in lines]
    for row in own:
        margins = " / ".join(f"{float(row[key]):.3f}" for key in ("cut_margin", "means_margin"))
        scores = [f"{float(row[key]):.3f}" for key in ("acc", "nmi")]
        assert [row["seed"], *scores, margins] in shown
    for name, of in (("mean", fmean), ("worst", min)):
        scores = [f"{of(float(row[key]) for row in own):.3f}" for key in ("acc", "nmi")]
        assert [name, *scores, ""] in shown


def test_the_photographs_cells_are_the_datas() -> None:
    page = (DOCS / "choosing.md").read_text(encoding="utf-8")
    section = page.split("60,000 photographs\n")[1].split("\n###")[0]
    everything = rows("concord_photographs.csv")
    measured = [row for row in everything if "Lite0" in row["encoder"]]
    for method in {row["method"] for row in measured}:
        own = [row for row in measured if row["method"] == method]
        start = f"| [{METHODS[method]}]"
        (line,) = (line for line in section.splitlines() if line.startswith(start))
        by_p = [own] * 3 if method in SAME_AT_EVERY_P else [[row] for row in own]
        for score, cell in zip(("nmi", "acc"), line.split(" | ")[1:], strict=False):
            means = (fmean(float(row[score]) for row in some) for some in by_p)
            assert cell == " / ".join(f"{mean:.3f}" for mean in means), (method, score)
    larger = [row for row in everything if row not in measured]
    (line,) = (line for line in section.splitlines() if "Lite2 | " in line)
    for score, cell in zip(("nmi", "acc"), line.split(" | ")[1:], strict=False):
        assert cell == " / ".join([f"{fmean(float(row[score]) for row in larger):.3f}"] * 3)


def test_the_networks_of_photographs_have_the_figures_of_their_seeds() -> None:
    page = (DOCS / "results" / "concord.md").read_text(encoding="utf-8")
    for name in ("Lite0", "Lite2"):
        found = [
            row
            for row in rows("concord_photographs.csv")
            if row["method"] == "concord" and name in row["encoder"]
        ]
        values = [[float(row[key]) for row in found] for key in ("nmi", "acc")]
        cells = " | ".join(f"{fmean(own):.3f} | {min(own):.3f}" for own in values)
        assert f"| EfficientNet-{name} | {cells} |" in page


def test_the_whole_command_has_the_figures_of_its_run() -> None:
    page = " ".join((DOCS / "results" / "concord.md").read_text(encoding="utf-8").split())
    (whole,) = rows("concord_whole_command.csv")
    (beforehand,) = (
        row
        for row in rows("concord_photographs.csv")
        if row["seed"] == "0" and row["method"] == "concord" and "Lite2" in row["encoder"]
    )
    told = [f"{float(row[key]):.3f}" for row in (whole, beforehand) for key in ("nmi", "acc")]
    said = "it reached NMI {} and ACC {}, where seed 0 above has {} and {}"
    assert said.format(*told) in page


def test_own_labels_of_networks_have_the_figures_of_their_seeds() -> None:
    page = (DOCS / "results" / "concord.md").read_text(encoding="utf-8")
    measured = rows("concord_own_labels.csv")
    starts = ("quadrics", "own_from_cut", "own_from_means", "chosen")
    for data, features in {(row["data"], row["features"]) for row in measured}:
        own = [row for row in measured if (row["data"], row["features"]) == (data, features)]
        assert len(own) == 4
        means = [
            ", ".join(
                f"{fmean(float(row[f'{start}_{score}']) for row in own):.3f}" for score in SCORES
            )
            for start in starts
        ]
        assert f"| {data} | {features} | {' | '.join(means)} |" in page
        if data == "cifar10, first 10,000":
            values = [[float(row[f"chosen_{score}"]) for row in own] for score in SCORES]
            cells = " | ".join(f"{fmean(each):.3f} / {min(each):.3f}" for each in values)
            assert f"| {features} | {cells} |" in page


@pytest.mark.parametrize(("data", "title"), TITLES.items())
def test_the_comparisons_cells_are_the_datas(data: str, title: str) -> None:
    page = (DOCS / "choosing.md").read_text(encoding="utf-8")
    section = page.split(f"### {title}\n")[1].split("\n###")[0].split("Every row is in")[0]
    lines = [line for line in section.splitlines() if line.startswith("| [")]
    shown = {
        name.partition("]")[0].removeprefix("["): cells
        for name, *cells in ([c.strip() for c in line.split("|")[1:-1]] for line in lines)
    }
    measured = [row for row in rows() if row["data"] == data and row["seed"] == "0"]
    assert shown.keys() == {METHODS[row["method"]] for row in measured if row["method"] in METHODS}
    for method, name in METHODS.items():
        own = {float(row["p"]): row for row in measured if row["method"] == method}
        if method in SAME_AT_EVERY_P and own:
            own = dict.fromkeys((0.0, 0.5, 1.0), next(iter(own.values())))
        for place, score in enumerate(("nmi", "acc") if own else ()):
            cells = [f"{float(own[p][score]):.3f}" if p in own else "–" for p in (0.0, 0.5, 1.0)]
            assert shown[name][place] == " / ".join(cells), (name, score)


def test_the_table_of_private_runs_is_the_datas() -> None:
    with (DOCS / "results" / "data" / "privacy.csv").open(newline="") as file:
        measured = list(csv.DictReader(file))
    wanted = [
        (
            f"{float(row['epsilon']):.2f}, {row['delta']}" if row["epsilon"] else "none",
            row["noise_multiplier"] or "0",
            row["rounds"],
            f"{row['score'].upper()} {float(row['value']):.3f}",
        )
        for row in measured
    ]
    named = ("FedAvg, 500", "FedAvg, 60,000", "k-means, 70,000", "Concord, 70", "Prototypes, 70")
    shown = table_rows("differential-privacy.md", *named)
    assert [tuple(cells[2:]) for cells in shown] == wanted
    assert all(row["commit"] and row["command"] for row in measured)


def test_the_curve_of_private_clusters_is_the_datas() -> None:
    with (DOCS / "results" / "data" / "privacy.csv").open(newline="") as file:
        measured = [row for row in csv.DictReader(file) if row["score"] == "nmi"]
    value = {
        (row["method"], f"{float(row['epsilon']):.2g}" if row["epsilon"] else "none"): row["value"]
        for row in measured
    }
    shown = table_rows(
        "differential-privacy.md", "Concord, by", "prototypes, by", "k-means on pixels, by"
    )
    for method, cells in zip(("concord", "prototypes", "kmeans"), shown, strict=True):
        wanted = [value.get((method, at)) for at in ("0.46", "0.93", "1.9", "7.5", "none")]
        assert cells[1:] == [f"{float(v):.3f}" if v else "–" for v in wanted]


def test_the_curve_over_the_fewest_samples_is_the_datas() -> None:
    with (DOCS / "results" / "data" / "concord_minimum.csv").open(newline="") as file:
        wanted = [
            [row["minimum"], f"{float(row['nmi']):.3f}", f"{float(row['kappa']):.3f}"]
            for row in csv.DictReader(file)
        ]
    shown = table_rows("results/concord.md", *(f"{row[0]} |" for row in wanted))
    assert [cells[:3] for cells in shown if len(cells) == 4] == wanted


def test_the_trials_of_the_choice_without_labels_stand_on_their_page() -> None:
    path = DOCS / "results" / "data" / "tune_orchestra.csv"
    with path.open(newline="") as file:
        trials = list(csv.DictReader(file))
    scores = ("selection", "align", "unif")
    names = (
        *(f"unsupervised/{name}" for name in scores),
        "linear/acc",
        "knn/acc",
        "clustering/nmi",
    )
    wanted = [
        [
            trial["method.learning_rate"],
            trial["method.temperature"],
            *(f"{float(trial[name]):.3f}".replace("-", "−") for name in names),
        ]
        for trial in trials
    ]
    assert table_rows("tuning.md", "0.") == wanted
    assert [trial["chosen"] for trial in trials] == ["yes", *[""] * 5]
    by_probe = sorted(trials, key=lambda trial: -float(trial["linear/acc"]))
    assert (by_probe[0], by_probe[-1]) == (trials[-1], trials[0])


def test_the_table_of_clients_that_share_a_gpu_is_its_datas() -> None:
    with (DOCS / "results" / "data" / "gpu_sharing.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    whole = float(lines[0]["images_per_s"])
    wanted = [
        [
            *(line[key] for key in ("processes", "views", "precision")),
            f"{int(line['images_per_s']):,}",
            f"{float(line['images_per_s']) / whole:.2f}".replace("1.00", "1"),
        ]
        for line in lines
    ]
    ways = [f"{line['processes']} | {line['views']}" for line in lines]
    assert table_rows("benchmarks.md", *ways) == wanted


def test_the_table_of_loss_against_bytes_is_the_datas() -> None:
    with (DOCS / "results" / "data" / "compression.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shown = table_rows("benchmarks.md", "none", "`int8`", "`topk`")
    whole = int(rows[0]["bytes_up"])
    for place, cells in enumerate(shown):
        runs = rows[3 * place : 3 * place + 3]
        assert [run["seed"] for run in runs] == ["0", "1", "2"]
        assert cells[0].startswith((runs[0]["compression"], f"`{runs[0]['compression']}`"))
        means = [
            f"{sum(float(run[key]) for run in runs) / 3:.3f}"
            for key in ("loss", "loss_without_at_these_bytes", "test_acc")
        ]
        up = int(runs[0]["bytes_up"])
        found = [cells[3], means[1] if cells[4] == "–" else cells[4], cells[5]]
        assert cells[1:3] == [f"{up / 1e6:.2f}", f"{whole / up:.1f}"]
        assert found == means
    assert len(rows) == 3 * len(shown)


def test_the_sizes_that_were_measured_stand_with_the_benchmarks() -> None:
    assert sizes.table() in (DOCS / "benchmarks.md").read_text(encoding="utf-8")


def test_more_starts_and_finer_cells_have_the_figures_of_their_seeds() -> None:
    page = " ".join((DOCS / "results" / "concord.md").read_text(encoding="utf-8").split())
    measured = rows("concord_options.csv")
    for option in ("method.restarts=10", "encoder.cells=7"):
        found = [row for row in measured if row["option"] == option]
        nmi, acc = ([float(row[key]) for row in found] for key in ("nmi", "acc"))
        cells = f"{len(found)} | {fmean(nmi):.3f} | {min(nmi):.3f} | {fmean(acc):.3f}"
        assert f"| `{option}` | {cells} |" in page
    single = rows("concord_cells.csv")
    told = {
        "5": "{} on Fashion-MNIST, {} on MNIST and {} on USPS",
        "6": "six {}, {} and {}",
        "7": "seven {}, {} and {}",
    }
    for cells, sentence in told.items():
        means = (
            fmean(float(r["nmi"]) for r in single if (r["data"], r["cells"]) == (data, cells))
            for data in ("fashionmnist", "mnist", "usps")
        )
        assert sentence.format(*(f"{mean:.3f}" for mean in means)) in page
