"""The file of a study's results: what is added, replaced, kept."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from coterie.commands.compose import compose
from coterie.errors import ConfigError, DataError
from coterie.studies.paper_plan import read_study_plan
from coterie.studies.paper_study import Cell
from coterie.studies.results_file import Result, add_results, config_digest, read_results


def result(row="CCFC", seed=0, commit="a", config="c", **numbers) -> Result:
    cell = Cell(row, "MNIST, p=0")
    return Result(cell, seed, numbers or {"nmi": 0.5}, commit, "2 cores of AMD, shared", config)


def test_results_read_back_as_written_with_a_column_for_every_number(tmp_path) -> None:
    path = tmp_path / "data" / "x-cpu.csv"
    first = result(nmi=0.123456789, bytes=12_345_678_901)
    second = result("k-FED", seed=2, acc=1e-7)
    add_results(path, [first])
    add_results(path, [second])
    one, two = read_results(path)
    assert one == result(nmi=0.123457, bytes=12_345_678_901)
    assert two == second
    assert path.read_text().splitlines()[0] == "row,column,seed,nmi,bytes,acc,commit,device,config"
    assert "12345678901" in path.read_text()


def test_a_newer_result_replaces_that_of_its_cell_and_seed(tmp_path) -> None:
    path = tmp_path / "x.csv"
    add_results(path, [result(), result(seed=1)])
    add_results(path, [result(commit="b", nmi=0.6)])
    assert [(r.seed, r.commit) for r in read_results(path)] == [(0, "b"), (1, "a")]


def test_a_run_that_was_finished_before_keeps_its_commit(tmp_path) -> None:
    path = tmp_path / "x.csv"
    add_results(path, [result(nmi=0.123456789)])
    add_results(path, [result(commit="b", nmi=0.123456789)])
    assert [r.commit for r in read_results(path)] == ["a"]
    add_results(path, [result(commit="b", config="other", nmi=0.123456789)])
    assert [r.commit for r in read_results(path)] == ["b"]


def test_studies_at_the_same_time_keep_each_others_results(tmp_path) -> None:
    path, rows = tmp_path / "x.csv", [f"row {n}" for n in range(32)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda row: add_results(path, [result(row)]), rows))
    assert sorted(each.cell.row for each in read_results(path)) == sorted(rows)
    assert [each.name for each in tmp_path.iterdir()] == ["x.csv"]


def test_a_lock_that_another_user_may_have_is_not_waited_for(tmp_path) -> None:
    """Whoever may open a folder, or a file that came open to all, may lock it."""
    path, own = tmp_path / "x.csv", tmp_path / ".x.csv.lock"
    own.touch(0o644)
    with ThreadPoolExecutor(1) as threads:
        folder = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)
        threads.submit(add_results, path, [result()]).result(timeout=10)
        os.close(folder)
    assert len(read_results(path)) == 1
    assert not own.exists()


def test_another_file_is_refused(tmp_path) -> None:
    path = tmp_path / "x.csv"
    assert read_results(path) == ()
    path.write_text("row,seed\na,0\n")
    with pytest.raises(DataError, match=r"x\.csv: it is not a file of a study's results"):
        read_results(path)


BROKEN = {
    "a cut line": "k-FED,p,1",
    "a conflict's mark": "<<<<<<< HEAD",
    "a field too many": "k-FED,p,1,0.5,a,d,c,more",
    "a word": "k-FED,p,1,half,a,d,c",
    "no number": "k-FED,p,1,nan,a,d,c",
    "infinity": "k-FED,p,1,inf,a,d,c",
    "the same run twice": '"CCFC","MNIST, p=0",0,0.5,a,d,c',
    "a long field": f"k-FED,p,1,0.5,a,{'x' * 200_000},c",
    "another encoding": b"k-F\xc9D,p,1,0.5,a,d,c",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_damaged_file_is_refused_in_a_sentence(tmp_path, kind) -> None:
    path, line = tmp_path / "x.csv", BROKEN[kind]
    add_results(path, [result()])
    with path.open("ab") as file:
        file.write((line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(
        DataError, match=r"it is not a file of a study's results \(.+\); correct"
    ) as told:
        read_results(path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("there", ["link", "pipe", "file"])
def test_a_place_that_cannot_take_results_is_refused_before_the_first_run(tmp_path, there) -> None:
    place = tmp_path / "results"
    if there == "file":
        place.write_text("")
    else:
        place.mkdir()
        file = place / "ccfc_1-smoke.csv"
        file.symlink_to("/proc/kmsg") if there == "link" else os.mkfifo(file)
    plan = read_study_plan(["study=ccfc_1", "scale=smoke", f"results={place}"])
    with pytest.raises(ConfigError, match=f"^results={place}"):
        plan.check()


def test_a_digest_is_of_what_decides_the_numbers() -> None:
    base = ("experiment=kfed_digits", "cluster=serial")
    same = config_digest(compose(*base))
    assert config_digest(compose(*base, "data.root=/elsewhere")) == same
    assert config_digest(compose("experiment=kfed_digits", "cluster.num_actors=2")) == same
    assert config_digest(compose(*base, "seed=1")) != same
    assert config_digest(compose(*base, "evaluation.knn_k=3")) != same
