"""Samples for fine-tuning with few labels: no client has them, and no others are labelled."""

import json
from pathlib import Path

import numpy as np
import pytest

from coterie.commands.compose import compose
from coterie.errors import ConfigError, DataError
from coterie.jobs.evaluate import main
from coterie.run import fine_tuning
from coterie.run.data import draw_pool, read_and_split, without_pool
from coterie.run.federation import RunResult
from coterie.run.setup import assemble
from tests.builders.runs import TINY, train

POOL = "labelled_pool=0.2"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return train(tmp_path_factory.mktemp("pool") / "run", POOL)


def test_clients_keep_their_samples_but_for_a_share_of_each_class() -> None:
    data, whole = read_and_split(compose(*TINY))
    _, parts = read_and_split(compose(*TINY, POOL))
    pool = draw_pool(data, 0.2, seed=0)
    classes = np.bincount(data.labels)
    assert np.bincount(data.labels[pool]).tolist() == [max(1, round(0.2 * n)) for n in classes]
    for before, after in zip(whole, parts, strict=True):
        assert not set(after) & set(pool)
        assert set(after) | (set(before) & set(pool)) == set(before)
    assert sum(map(len, whole)) == sum(map(len, parts)) + len(pool)
    assert not np.array_equal(pool, draw_pool(data, 0.2, seed=1))


def test_without_a_share_nothing_changes() -> None:
    data, parts = read_and_split(compose(*TINY))
    assert len(draw_pool(data, 0.0, seed=0)) == 0
    kept = without_pool(parts, draw_pool(data, 0.0, seed=0))
    assert all(np.array_equal(a, b) for a, b in zip(parts, kept, strict=True))


def test_labels_are_of_the_pool_alone(ran: RunResult, monkeypatch) -> None:
    given, original = [], fine_tuning.fine_tune

    def spied(encoder, labelled, test, **options):
        given.append((labelled, options["share"]))
        return original(encoder, labelled, test, **options)

    monkeypatch.setattr(fine_tuning, "fine_tune", spied)
    arguments = [f"run={ran.run_dir}", "labelled_shares=[0.1]", "fine_tuning_epochs=2"]
    assert main(arguments) == 0
    (((samples, labels), share),) = given
    assembly = assemble(compose(*TINY, POOL))
    data, pool = assembly.data, draw_pool(assembly.data, 0.2, seed=0)
    trained = {data.samples[row].tobytes() for part in assembly.workload.parts for row in part}
    everything = {data.samples[row].tobytes() for row in pool}
    assert len(labels) == len(samples) > 0
    assert {sample.tobytes() for sample in samples} <= everything
    assert not {sample.tobytes() for sample in samples} & (trained - everything)
    assert share == pytest.approx(0.5)
    written = json.loads((ran.run_dir / "evaluation-round-000004" / "metrics.json").read_text())
    assert "labels_10%" in written["metrics"]


def test_a_run_fine_tunes_at_its_end_as_its_evaluation_does(tmp_path, capsys) -> None:
    keys = ("evaluation.labelled_shares=[0.1,0.2]", "evaluation.fine_tuning_epochs=2")
    done = train(tmp_path / "run", POOL, *keys)
    arguments = [f"run={done.run_dir}", "labelled_shares=[0.1,0.2]", "fine_tuning_epochs=2"]
    assert main(arguments) == 0
    written = json.loads((done.run_dir / "evaluation-round-000004" / "metrics.json").read_text())
    for group in ("labels_10%", "labels_20%"):
        assert done.metrics[group] == written["metrics"][group]


def test_a_run_that_would_fine_tune_with_more_labels_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        assemble(compose(*TINY, POOL, "evaluation.labelled_shares=[0.1,0.3]"))
    assert str(refused.value) == (
        "evaluation.labelled_shares=0.3: the run held labelled_pool=0.2 of the samples out of its "
        "training; choose at most that share."
    )


def test_more_labels_than_were_held_out_are_refused(ran: RunResult, capsys) -> None:
    assert main([f"run={ran.run_dir}", "labelled_shares=[0.1,0.3]"]) == 2
    assert capsys.readouterr().err == (
        "labelled_shares=0.3: the run held labelled_pool=0.2 of the samples out of its training; "
        "choose at most that share.\n"
    )


def test_it_needs_labels_and_data_that_the_driver_has(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", x=np.random.default_rng(0).normal(size=(40, 3)).astype("f4"))
    unlabelled = ("data=npz", f"data.path={tmp_path / 'v.npz'}", "partition=iid")
    with pytest.raises(DataError, match=r"^labelled_pool=0\.2: data=v has no labels; leave it out"):
        read_and_split(compose(*TINY, *unlabelled, "augmentation=noise", POOL))
    sites = (
        "data=node_local",
        f"data.clients={{a: {tmp_path}}}",
        "partition=by_client",
        "data.source={target: coterie.datamodules.folders:ClassFolders, size: 8}",
    )
    with pytest.raises(ConfigError, match=r"^labelled_pool=0\.2: data that stays with its clients"):
        assemble(compose("experiment=fedmcc_digits", "cluster=serial", *sites, POOL))
