"""Groups of clients: their scores, table and figure, and a run that leaves all of them."""

import csv
import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.metrics import adjusted_rand_score

from coterie import Federation, load_model
from coterie.commands.compose import compose
from coterie.contract import ServerState
from coterie.evaluation.canvas import COLOURS
from coterie.evaluation.group_figure import group_figure
from coterie.jobs.predict import main as predict
from coterie.modules.cc import CC
from coterie.run.client_groups import ClientGroups
from tests.builders.observers import Silent

HISTORY = {1: [0, 2, 2, -1, 0, 1], 3: [1, 1, 1, 0, 0, -1]}
TRUTH = np.array([0, 0, 1, 1, 2, 2])
SERVER = ServerState(slots={})


class Grouping:
    """Only says what groups there are."""

    def client_groups(self, server: Any) -> Any:
        return HISTORY

    def members(self, server: Any) -> Any:
        return {5: 1, 0: 1, 1: 1, 2: 1, 3: 0, 4: 0}


def test_scores_are_of_the_last_round_over_who_took_part() -> None:
    found = ClientGroups(method=Grouping(), truth=TRUTH).scores(SERVER)
    wanted = adjusted_rand_score(TRUTH[:5], HISTORY[3][:5])
    assert found == {"used": 2, "largest": 0.6, "ari": pytest.approx(wanted, abs=1e-12)}
    assert set(ClientGroups(method=Grouping(), truth=None).scores(SERVER)) == {"used", "largest"}


def test_members_are_those_who_are_in_a_group_now() -> None:
    found = ClientGroups(method=Grouping(), truth=None).members(SERVER)
    assert found == {0: [3, 4], 1: [0, 1, 2, 5]}
    assert list(found) == [0, 1]


def test_the_table_has_a_row_for_each_client_that_took_part(tmp_path) -> None:
    ClientGroups(method=Grouping(), truth=TRUTH).write(tmp_path / "a.csv", SERVER)
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[:3] == ["round,client,group,true_group", "1,0,0,0", "1,1,2,0"]
    assert len(lines) == 1 + 5 + 5
    ClientGroups(method=Grouping(), truth=None).write(tmp_path / "b.csv", SERVER)
    assert (tmp_path / "b.csv").read_text().splitlines()[:2] == ["round,client,group", "1,0,0"]


def test_the_figure_shows_every_client_in_its_groups_colour(tmp_path) -> None:
    path = group_figure(HISTORY, np.array([1, 1, 0, 0, 0, 0]), tmp_path / "x" / "groups.png")
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    shares = {}
    for group in range(4):
        colour = [int(COLOURS[group][start : start + 2], 16) for start in (1, 3, 5)]
        shares[group] = (pixels == colour).all(axis=1).sum()
    # Groups 0, 1 and 2 have 4, 4 and 2 of the 18 cells; nothing is drawn in a fourth colour.
    assert shares[3] == 0
    assert shares[0] / shares[2] == pytest.approx(2, rel=0.25)
    assert shares[1] / shares[2] == pytest.approx(2, rel=0.25)


def test_methods_without_groups_have_none() -> None:
    config = compose("experiment=cc_digits")
    assert ClientGroups.of(config, CC.__new__(CC)) is None


SMALL = (
    "experiment=cpcfl_digits",
    "cluster=serial",
    "executor=bare",
    "encoder.width=8",
    "method.rounds=4",
    "method.explore_rounds=2",
    "evaluation.every=2",
    "tracking.progress=none",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
    "checkpoint.every=1",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("cpcfl") / "run"
    return Federation(compose(*SMALL, f"run_dir={folder}")).run()


def test_a_run_leaves_scores_table_figure_and_model(run) -> None:
    rows = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    server = [row for row in rows if row["scope"] == "server"]
    with (run.run_dir / "client_groups.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == 4 * 12
    for row in server:
        here = [line for line in table if int(line["round"]) == row["round"]]
        groups, truth = ([int(line[key]) for line in here] for key in ("group", "true_group"))
        assert truth == [0] * 4 + [1] * 4 + [2] * 4
        assert row["groups/ari"] == pytest.approx(adjusted_rand_score(truth, groups), abs=1e-9)
        assert row["groups/used"] == len(set(groups))
        assert row["groups/largest"] == np.bincount(groups).max() / 12
    assert ["local/acc" in row for row in server] == [False, True, False, False]
    summary = json.loads((run.run_dir / "summary.json").read_text())["metrics"]
    assert summary["groups"]["ari"] == pytest.approx(server[-1]["groups/ari"])
    assert set(summary["local"]) == {
        "acc",
        "f1_macro",
        "f1_weighted",
        "auroc_ovr_macro",
        "auroc_ovr_weighted",
        "auroc_ovo_macro",
        "auroc_ovo_weighted",
    }
    assert (run.run_dir / "figures" / "client_groups.png").stat().st_size > 5000
    assert load_model(run.run_dir).classifies


def test_each_group_has_its_model(run, tmp_path) -> None:
    with (run.run_dir / "client_groups.csv").open() as file:
        last = [int(line["group"]) for line in csv.DictReader(file) if line["round"] == "4"]
    folder = run.run_dir / "model" / "groups"
    assert sorted(path.name for path in folder.iterdir()) == sorted(map(str, set(last)))
    pool = load_file(run.run_dir / "checkpoints" / "round-000004" / "server.safetensors")
    samples = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    for group in set(last):
        model = load_model(folder / str(group))
        stored = pool[json.dumps([f"encoder/{group}", "encoder.network.0.weight"])]
        assert torch.equal(model.encoder.network[0].weight, stored)
        same = torch.equal(model(samples).probabilities, run.model(samples).probabilities)
        assert same == (group == np.bincount(last).argmax())
    np.save(tmp_path / "digits.npy", samples[:, 0].numpy())
    keys = (f"model={folder / str(last[0])}", f"input={tmp_path / 'digits.npy'}")
    assert (
        predict([*keys, f"output={tmp_path / 'assignments.parquet'}", "cluster.backend=serial"])
        == 0
    )


def test_a_resumed_run_has_the_whole_table(run, tmp_path) -> None:
    """Stopped after a checkpoint in the middle, as by a kill; its files begin at the same state."""
    recorder_rows = (run.run_dir / "client_groups.csv").read_text()

    class Stop(BaseException):
        """The process is gone."""

    class View(Silent):
        def phase_started(self, phase, cohort_size, total_rounds):
            if phase.round == 4:
                raise Stop

    keys = (*SMALL, "evaluation.figures=false", f"run_dir={tmp_path / 'run'}")
    first = Federation(compose(*keys), View())
    with pytest.raises(Stop):
        first.run()
    again = Federation(compose(*keys, "resume=true")).run()
    assert (again.run_dir / "client_groups.csv").read_text() == recorder_rows
    assert again.metrics["local"] == run.metrics["local"]
