import pytest

from coterie.commands.compose import compose
from coterie.config.about import about


def run(*overrides):
    return compose("experiment=fedmcc_digits", *overrides)


def test_a_run_is_named_by_method_data_partition_and_seed():
    given = ("partition=dirichlet", "partition.clients=4", "partition.alpha=0.1", "seed=3")
    expected = "FedMCC on Digits, partition Dirichlet(clients=4, alpha=0.1), seed 3"
    assert about([run(*given)]) == expected


@pytest.mark.parametrize(
    ("path", "name"),
    [("scans/2026/", "2026"), ("lists/all.csv", "all.csv"), ("a b", "a b"), ("/", "ImageFolder")],
)
def test_own_data_is_called_by_its_file_or_folder(path, name):
    own = ("data=image_folder", f"data.path={path}", "partition=by_client")
    assert (
        about([compose("experiment=kmeans", *own, "seed=2")])
        == f"KMeans on {name}, partition ByClient, seed 2"
    )


def test_runs_are_named_by_what_differs_too():
    runs = [run("partition.clients=4"), compose("experiment=fedcc_digits", "seed=1")]
    assert about(runs).startswith("FedMCC, FedCC on Digits, partition IID(clients=4), IID(")
    assert about(runs).endswith("seeds 0, 1")


def test_of_many_only_six_are_named():
    runs = [run(f"seed={seed}") for seed in range(9)]
    assert about(runs).endswith("seeds 0, 1, 2, 3, 4, 5 and 3 others")
