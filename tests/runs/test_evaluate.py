"""`coterie evaluate`: the run's own numbers again, other checkpoints, no labels, refusals."""

import json
from pathlib import Path

import pytest
from PIL import Image

from coterie.commands.compose import compose
from coterie.jobs.evaluate import main
from coterie.run.setup import assemble
from tests.builders.runs import TINY, train

KEYS = ("fine_tuning_epochs=2",)


@pytest.fixture
def ran(finished_run):
    return finished_run


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("COLUMNS", "80")


def metrics_of(run_dir, name):
    return json.loads((run_dir / f"evaluation-{name}" / "metrics.json").read_text())


def test_the_last_checkpoint_gives_the_runs_own_scores(ran, capsys):
    assert main([f"run={ran.run_dir}", "evaluation.figures=true", *KEYS]) == 0
    written = metrics_of(ran.run_dir, "round-000004")
    own = json.loads((ran.run_dir / "summary.json").read_text())["metrics"]
    assert {group: written["metrics"][group] for group in own} == own
    assert (written["round"], written["method"], written["dataset"]) == (4, "FedMCC", "digits")
    assert set(written["metrics"]) - set(own) == {"labels_1%", "labels_10%", "unsupervised"}
    scores = written["metrics"]["unsupervised"]
    assert -1 <= scores["align"] <= 1
    assert -5 <= scores["unif"] <= 0
    assert scores["selection"] == pytest.approx(scores["align"] + 0.2 * scores["unif"])
    assert -1 <= scores["mixing"] <= 1
    folder = ran.run_dir / "evaluation-round-000004"
    assert {path.name for path in folder.iterdir()} == {
        "metrics.json",
        "class_distances.png",
        "clusters.png",
        "confusion.png",
        "tsne.png",
    }
    table = [line for line in capsys.readouterr().out.splitlines() if "/" not in line]
    assert max(map(len, table)) <= 80
    assert any("fine-tuned, 10% of labels" in line for line in table)


def test_an_evaluation_gives_the_same_numbers_again(ran):
    arguments = [f"run={ran.run_dir}", "labelled_shares=[0.1]", *KEYS]
    assert main(arguments) == 0
    first = metrics_of(ran.run_dir, "round-000004")
    assert first["settings"] == {"labelled_shares": [0.1], "fine_tuning_epochs": 2}
    assert main(arguments) == 0
    assert metrics_of(ran.run_dir, "round-000004") == first


def test_an_earlier_round(ran):
    rounds = sorted(path.name for path in (ran.run_dir / "checkpoints").glob("round-*"))
    assert rounds == ["round-000003", "round-000004"]
    assert main([f"run={ran.run_dir}", "checkpoint=3", "labelled_shares=[]", *KEYS]) == 0
    assert metrics_of(ran.run_dir, "round-000003")["round"] == 3


@pytest.mark.parametrize("apart", [pytest.param(False, marks=pytest.mark.slow), True])
def test_maps_of_several_rounds_stand_side_by_side(ran, tmp_path, capsys, apart):
    """FedMCC, figures 4 and 5."""
    out = [f"out={tmp_path / 'out'}"] if apart else []
    figures = ("evaluation.figures=true", "labelled_shares=[]")
    assert main([f"run={ran.run_dir}", "rounds=[3,4]", *figures, *out]) == 0
    folder = tmp_path / "out" if apart else ran.run_dir / "evaluation-rounds"
    each = (
        [folder / f"round-{n}" for n in (3, 4)]
        if apart
        else [ran.run_dir / f"evaluation-round-00000{n}" for n in (3, 4)]
    )
    rounds = [json.loads((one / "metrics.json").read_text())["round"] for one in each]
    assert rounds == [3, 4]
    one, both = (Image.open(path / "tsne.png") for path in (each[0], folder))
    assert both.width / both.height > 1.5 * one.width / one.height
    printed = capsys.readouterr().out
    assert printed.count("tsne.png") == 3


def test_a_run_without_labels_has_the_unsupervised_scores(tmp_path):
    pictures = assemble(compose(*TINY)).data.samples[:, 0]
    (tmp_path / "x").mkdir()
    for row, pixels in enumerate(pictures[:60]):
        Image.fromarray(pixels).save(tmp_path / "x" / f"{row:03d}.png")
    unlabelled = (
        "data=image_folder",
        f"data.path={tmp_path / 'x'}",
        "data.mode=L",
        "~data.limit",
        "method.clusters=3",
        "partition.clients=2",
    )
    run_dir = train(tmp_path / "run", *unlabelled).run_dir
    assert main([f"run={run_dir}"]) == 0
    written = metrics_of(run_dir, "round-000004")["metrics"]
    assert set(written) == {"unsupervised"}
    assert set(written["unsupervised"]) == {"align", "unif", "selection", "mixing"}


REFUSED = {
    "run=nowhere": "run=nowhere: there is no such folder; give the folder of an earlier run.",
    "run=empty": "run=empty: no config.yaml in it; give the folder of an earlier run.",
    "checkpoint=99": "{run}/checkpoints: it has no checkpoint of round 99; it has those of",
    "checkpoint=best": "{run}/checkpoints: it has no best checkpoint; it has those of",
    "checkpoint=last": "checkpoint=last: must be one of latest, best; did you mean latest?",
    "checkpoint=-1": "checkpoint=-1: must be one of latest, best, or a larger number.",
    "checkpoint=foo": "checkpoint=foo: must be one of latest, best, or a whole number.",
    "data=mnist": "data=mnist: the run's data cannot be replaced; change only single keys of",
    "rounds=[99,4]": "{run}/checkpoints: it has no checkpoint of round 99; it has those ",
    "runs=x": "runs=x: there is no such key; did you mean run?",
    "chekpoint=3": "chekpoint=3: there is no such key; did you mean checkpoint?",
    "evaluation.kn=no": "evaluation.kn=no: there is no such key; did you mean evaluation.knn?",
    "method.rounds=3": "method={rounds:3}: training has fixed this key of the run; "
    "change only keys of acc",
    "labelled_shares=[2]": "labelled_shares[0]=2: must be at most 1.",
    "fine_tuning_epochs=0": "fine_tuning_epochs=0: must be at least 1.",
    "data.limit=many": "data.limit=many: not a whole number; give one such as",
}


@pytest.mark.parametrize("argument", REFUSED)
def test_one_sentence_and_exit_code_2(ran, capsys, tmp_path, monkeypatch, argument):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    usual = [] if argument.startswith("run=") else [f"run={ran.run_dir}"]
    before = set(ran.run_dir.iterdir())
    assert main([*usual, argument]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(REFUSED[argument].replace("{run}", str(ran.run_dir)))
    assert set(ran.run_dir.iterdir()) == before


def test_a_run_is_asked_for(capsys):
    assert main([]) == 2
    assert capsys.readouterr().err == "run: a value is needed; give run=….\n"


def test_what_was_set_anew_stands_beside_the_scores(ran):
    changes = ("evaluation.knn_k=3", "evaluation.knn=true", "data.limit=100")
    assert main([f"run={ran.run_dir}", "labelled_shares=[]", *changes]) == 0
    assert metrics_of(ran.run_dir, "round-000004")["settings"] == {
        "labelled_shares": [],
        "fine_tuning_epochs": 100,
        "evaluation": {"knn_k": 3, "knn": True},
        "data": {"limit": 100},
    }


def test_an_evaluation_can_be_kept_apart_from_an_earlier_one(ran, tmp_path):
    assert main([f"run={ran.run_dir}", "labelled_shares=[]"]) == 0
    before = metrics_of(ran.run_dir, "round-000004")
    out, knn = tmp_path / "a" / "b", "evaluation.knn_k=3"
    assert main([f"run={ran.run_dir}", "labelled_shares=[]", knn, f"out={out}"]) == 0
    assert metrics_of(ran.run_dir, "round-000004") == before
    apart = json.loads((out / "metrics.json").read_text())
    assert apart["settings"]["evaluation"] == {"knn_k": 3}
    assert apart["metrics"]["clustering"] == before["metrics"]["clustering"]


def test_a_folder_that_cannot_be_made_is_refused_first(ran, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main([f"run={ran.run_dir}", f"out={tmp_path / 'file' / 'x'}"]) == 2
    words = capsys.readouterr().err
    assert words.startswith(f"out={tmp_path / 'file' / 'x'}: cannot write there (")
    assert words.endswith("; choose a folder you may write to.\n")
