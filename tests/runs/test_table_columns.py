"""A run on a table, and `predict` on other tables: columns count by their names."""

import numpy as np
import pandas as pd
import pytest

from coterie.jobs.predict import main as predict
from coterie.jobs.train import main as train

COLUMNS = ["age", "weight (kg)", "income"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(90, 3)) + draw.integers(0, 3, (90, 1)) * [4, -4, 4]
    frame = pd.DataFrame(rows, columns=COLUMNS).mul([10, 5, 9000]).round(2)
    frame.to_csv(folder / "t.csv", index=False)
    return folder, frame


@pytest.fixture(scope="module")
def trained(table):
    folder, frame = table
    ranges = ", ".join(f'"{n}": [{frame[n].min()}, {frame[n].max()}]' for n in COLUMNS)
    words = ("experiment=kmeans", "data=manifest", f"data.path={folder / 't.csv'}")
    more = ("partition=iid", "partition.clients=2", "method.clusters=3", "cluster=serial")
    quiet = ("tracking.progress=none", "evaluation.figures=false", f"run_dir={folder / 'run'}")
    assert train([*words, *more, *quiet, f"data.feature_ranges={{{ranges}}}"]) == 0
    return folder / "run", frame


def predicted(trained, frame, folder):
    run, _ = trained
    frame.to_csv(folder / "new.csv", index=False)
    words = (f"model={run}", f"input={folder / 'new.csv'}", f"output={folder / 'out.csv'}")
    if code := predict([*words, "cluster=serial"]):
        return code
    found = pd.read_csv(folder / "out.csv")["cluster"].tolist()
    (folder / "out.csv").unlink()
    return found


def test_columns_in_another_order_and_beside_others_are_the_same(trained, tmp_path):
    _, frame = trained
    same = predicted(trained, frame, tmp_path)
    assert len(set(same)) == 3
    assert predicted(trained, frame[COLUMNS[::-1]], tmp_path) == same
    assert predicted(trained, frame.assign(height=1.8)[["height", *COLUMNS]], tmp_path) == same


@pytest.mark.parametrize("change", [{"age": "Alter"}, {"weight (kg)": "weight"}])
def test_a_column_of_another_name_is_told(trained, tmp_path, capsys, change):
    _, frame = trained
    assert predicted(trained, frame.rename(columns=change), tmp_path) == 2
    (name,) = change
    assert f"it has no column {name}, which is a feature; add it." in capsys.readouterr().err


def test_values_beyond_exact_sums_are_refused_before_the_run(table, capsys):
    folder, _ = table
    words = ("experiment=kmeans", "data=manifest", f"data.path={folder / 't.csv'}")
    more = ("partition=iid", "partition.clients=2", "method.clusters=3", "cluster=serial")
    assert train([*words, *more, f"run_dir={folder / 'no'}"]) == 2
    assert "t: income has a value of magnitude " in capsys.readouterr().err
    assert not (folder / "no").exists()
