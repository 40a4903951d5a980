"""A run leaves one page with all that a reader asks about it; a browser shows it whole."""

import csv
import html
import json
import re
import shutil

import pytest
from PIL import Image

from coterie import Federation, RunCallback, compose
from coterie.jobs.report import main
from tests.builders.browser import CHROMIUM, pictures_of, shown
from tests.builders.observers import Silent
from tests.builders.runs import COMMAND

RUN = (
    *COMMAND,
    "evaluation.every=1",
    "evaluation.figures=true",
    "evaluation.knn=true",
    "evaluation.knn_k=5",
    "partition.clients=3",
)
ABOUT = "FedMCC on Digits, partition IID(clients=3), seed 0"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "run"
    return Federation(compose(*RUN, f"run_dir={folder}")).run()


@pytest.fixture(scope="module")
def page(ran):
    return ran.run_dir / "report.html"


def text_of(page):
    plain = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page.read_text(), flags=re.DOTALL)
    return " ".join(html.unescape(plain).split())


def test_its_pictures_are_the_figures(ran, page):
    assert len(pictures_of(page)) == len(list((ran.run_dir / "figures").glob("*.png"))) == 6


def test_every_figure_says_what_was_run(ran):
    for path in (ran.run_dir / "figures").glob("*.png"):
        with Image.open(path) as image:
            assert image.text["Description"] == ABOUT, path.name


def test_it_has_the_final_scores_bytes_and_clients(ran, page):
    text = text_of(page)
    summary = json.loads((ran.run_dir / "summary.json").read_text())
    for group in ("clustering", "knn"):
        assert f"{summary['metrics'][group]['acc']:.3f}" in text
    assert ABOUT in text
    assert "completed" in text
    assert "to the server encoder" in text
    assert "client samples tasks failures loss seconds bytes down bytes up bytes peer" in text
    assert "method.batch_size 16" in text  # differs from its default
    assert "checkpoint.keep " not in text  # does not


def test_the_clients_add_up_to_the_run(ran):
    rows = list(csv.DictReader((ran.run_dir / "clients.csv").open()))
    summary = json.loads((ran.run_dir / "summary.json").read_text())
    assert [row["client"] for row in rows] == ["0", "1", "2"]
    assert sum(int(row["samples"]) for row in rows) == 100
    assert {row["tasks"] for row in rows} == {"2"}
    assert sum(int(row["bytes_down"]) for row in rows) == summary["bytes"]["down"]
    assert sum(int(row["bytes_up"]) for row in rows) == summary["bytes"]["up"]


def test_the_command_writes_the_same_page_again(ran, page, capsys):
    before = page.read_text()
    page.unlink()
    assert main([f"run={ran.run_dir}"]) == 0
    assert page.read_text() == before
    assert "report.html" in capsys.readouterr().out


needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: apt-get install chromium"
)


ODD = {
    "figures/a.png": [b"", b"x", bytes(40)],
    "summary.json": [b"{", b"[]", b"{}\xff", b'{"metrics": 3}', b'{"failures": 3}'],
    "clients.csv": [b"", b"client\n", b"client,tasks\nx\n", b"\xff"],
    "skipped.csv": [b"", b"file\n"],
    "metrics.jsonl": [b'{"scope": "server"}\n', b'{"scope": "server", "round": "x"}\n', b"\xff"],
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_a_page_or_a_sentence(ran, capsys, tmp_path, name):
    copy = shutil.copytree(ran.run_dir, tmp_path / "run")
    for content in ODD[name]:
        (copy / name).write_bytes(content)
        code = main([f"run={copy}"])
        told = capsys.readouterr().err.strip()
        assert code in {0, 2}, told
        assert told.count("\n") == 0
        assert bool(told) == bool(code)


def test_a_run_with_an_odd_figure_in_its_folder_completes(tmp_path):
    class Litter(RunCallback):
        def on_run_start(self, experiment, details):
            (tmp_path / "run" / "figures").mkdir(exist_ok=True)
            (tmp_path / "run" / "figures" / "a.png").touch()

    config = compose(*RUN, f"run_dir={tmp_path}/run", "evaluation.figures=false")
    assert Federation(config, callbacks=[Litter()]).run().exit_code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "completed"


@needs_chromium
def test_the_browser_tells_a_missing_picture_and_what_sticks_out(tmp_path):
    wrong = tmp_path / "wrong.html"
    wrong.write_text(
        '<body style="margin:0"><img src="data:image/png;base64,AAAA"><p class="long" '
        'style="width:500px">x</p></body>'
    )
    found = shown(wrong, 400, tmp_path)
    assert found == {"width": 400, "content": 500, "pictures": [0], "out": ["P long"]}


@needs_chromium
@pytest.mark.parametrize("width", [400, 1200])
def test_a_browser_shows_every_picture_and_nothing_sticks_out(page, width, tmp_path):
    found = shown(page, width, tmp_path)
    assert found["width"] == width
    assert found["pictures"] == [1] * len(list((page.parent / "figures").glob("*.png")))
    assert found["content"] <= width
    assert found["out"] == []


def test_clusters_that_stayed_empty_are_told(tmp_path):
    view, place = Silent(), tmp_path / "run"
    ran = Federation(compose(*COMMAND, f"run_dir={place}"), view).run()
    used = len(set(ran.assignments.tolist()))
    assert 1 < used < 10  # else the test shows nothing
    (told,) = [note for note in view.notes if "empty" in note]
    assert told.startswith(f"{10 - used} of 10 clusters ")
    assert f"sorts their samples into {used} of 10 clusters" in text_of(place / "report.html")
