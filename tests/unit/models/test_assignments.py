"""The file of predictions: names from a stranger's folder are text in it."""

import csv

import pyarrow.parquet as pq
import torch

from coterie.contract.clusterer import Prediction
from coterie.contract.data import SampleBatch
from coterie.models.assignments import AssignmentsFile

NAMES = ["=1+1.png", "@SUM(A1).png", "a\r=1.png", "a.png", "-2"]


def written(path):
    """Write a row for each name, in a cluster whose name is a formula."""
    many = len(NAMES)
    batch = SampleBatch(torch.zeros(many, 2).numpy(), names=NAMES, clients=NAMES)
    with AssignmentsFile(
        path, named=True, of_clients=True, clustered=True, features=None, cluster_names=["=2"]
    ) as file:
        file.write((batch, Prediction(torch.zeros(many, 2), torch.ones(many, 1))))


def test_a_spreadsheet_runs_no_name(tmp_path):
    written(tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shown = ["'=1+1.png", "'@SUM(A1).png", "a =1.png", "a.png", "-2"]
    assert [row["name"] for row in rows] == shown
    assert [row["client_name"] for row in rows] == shown
    assert {row["cluster_name"] for row in rows} == {"'=2"}
    assert {row["cluster"] for row in rows} == {"0"}


def test_parquet_has_the_names_as_they_are(tmp_path):
    written(tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet")["name"].to_pylist() == NAMES
