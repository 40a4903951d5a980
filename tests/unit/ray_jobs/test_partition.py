"""`coterie partition`: what it shows and writes, and runs that take its file."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from coterie.commands.compose import compose
from coterie.contract.data import DataArrays
from coterie.datamodules.partition_files import read_partition, write_partition
from coterie.errors import DataError
from coterie.jobs.partition import main
from coterie.run.data import read_and_split

SMALL = ("experiment=fedmcc_digits", "data.limit=300")


def test_a_later_run_has_the_same_clients(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "splits" / "a"
    overrides = (*SMALL, "partition=dirichlet", "partition.alpha=0.3")
    assert main([*overrides, f"out={out}"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["client", "samples", *"0123456789"]
    assert shown[-2].strip() == "5 clients, 300 samples"
    assert max(map(len, shown[:-1])) <= 80
    data, parts = read_and_split(compose(*overrides))
    assert [int(line.split()[1]) for line in shown[2:7]] == [len(part) for part in parts]
    kept = ("partition=file", f"partition.path={out}/partition.parquet", "seed=9")
    again, same = read_and_split(compose(*SMALL, *kept))
    assert all(left.tobytes() == right.tobytes() for left, right in zip(parts, same, strict=True))
    np.testing.assert_array_equal(again.samples, data.samples)
    table = pq.read_table(out / "partition.parquet")
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {"sample": "int64", "client": "int32"}
    with Image.open(out / "partition.png") as figure:
        assert figure.format == "PNG"


@pytest.mark.parametrize("name", ["partition.parquet", "partition.png"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_stands_in_its_place_is_neither_followed_nor_waited_for(tmp_path, capsys, name, kind):
    out, private = tmp_path / "out", tmp_path / "private"
    out.mkdir()
    private.write_text("precious")
    place = out / name
    make = {"link": lambda: place.symlink_to(private), "pipe": lambda: os.mkfifo(place)}
    make.get(kind, place.mkdir)()
    code = main([*SMALL, f"out={out}"])
    shown = capsys.readouterr()
    assert private.read_text() == "precious"
    if name.endswith("parquet"):
        assert code == 2
        assert shown.err.startswith(f"out={place}: it is not a file, but a link")
    elif kind != "link":  # a figure that fails ends nothing, and is not told as written
        assert code == 0
        assert shown.out.splitlines()[-1] == str(out / "partition.parquet")


def test_a_quoted_folder_is_that_folder(tmp_path):
    assert main([*SMALL, f'out="{tmp_path}/p q"']) == 0
    assert (tmp_path / "p q" / "partition.parquet").is_file()


def test_refusals_and_help(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, "partition.clients=301"]) == 2
    assert (
        capsys.readouterr().err == "partition.clients=301 is more than the 300 samples; lower it.\n"
    )
    (tmp_path / "taken").touch()
    assert main([*SMALL, "out=taken"]) == 2
    assert "out=taken: cannot write there (" in capsys.readouterr().err
    assert not (tmp_path / "partition").exists()
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "partition=file partition.path=DIR/partition.parquet" in text
    assert max(map(len, text.splitlines())) <= 80


def data(size=6, name="d", labels=None):
    samples = np.arange(size, dtype=np.float32)[:, None]
    return DataArrays(name=name, samples=samples, labels=labels, classes=("a", "b"))


def test_the_file_keeps_samples_that_no_client_has_out(tmp_path):
    parts = [np.array([1, 4]), np.array([0, 2])]
    write_partition(tmp_path / "p.parquet", parts, data())
    same = read_partition(tmp_path / "p.parquet", data())
    assert [part.tolist() for part in same] == [[1, 4], [0, 2]]
    assert {part.dtype for part in same} == {np.dtype(np.int64)}


@pytest.mark.parametrize("client", [2, 30_000_000, 2**31 - 1])
def test_a_file_that_leaves_clients_without_samples_is_refused_at_once(tmp_path, client):
    write_partition(tmp_path / "p.parquet", [np.array([1]), np.array([0])], data())
    table = pq.read_table(tmp_path / "p.parquet")
    far = pa.array([0, client], table.schema.field("client").type)
    place = table.schema.get_field_index("client")
    pq.write_table(table.set_column(place, "client", far), tmp_path / "p.parquet")
    with pytest.raises(DataError, match=rf"has a client {client}, but with 2 samples some"):
        read_partition(tmp_path / "p.parquet", data())


def test_clients_may_share_samples(tmp_path):
    parts = [np.array([1, 4]), np.array([1, 2, 4])]
    write_partition(tmp_path / "p.parquet", parts, data())
    assert [p.tolist() for p in read_partition(tmp_path / "p.parquet", data())] == [
        [1, 4],
        [1, 2, 4],
    ]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (data(name="e"), "the data set's name is d there and e here"),
        (data(size=7), "the number of samples is 6 there and 7 here"),
        (data(labels=np.zeros(6, np.int64)), "the digest of the labels is "),
    ],
)
def test_a_file_of_other_data_is_refused(tmp_path, other, reason):
    write_partition(tmp_path / "p.parquet", [np.arange(6)], data())
    with pytest.raises(DataError) as refusal:
        read_partition(tmp_path / "p.parquet", other)
    assert f"it was made for other data ({reason}" in str(refusal.value)
    assert str(refusal.value).endswith("or make it again with `coterie partition`.")


@pytest.mark.parametrize(
    ("samples", "clients", "reason"),
    [
        ([0, 6], [0, 0], r"rows 0\.\.5, each at most once"),
        ([-1, 2], [0, 0], r"rows 0\.\.5, each at most once"),
        ([2, 2], [1, 1], r"rows 0\.\.5, each at most once"),
        ([0, 1], [-1, 0], "numbered from 0"),
        ([], [], "numbered from 0"),
        ([0, None], [0, 0], "an entry is missing"),
    ],
)
def test_files_that_are_no_partition(tmp_path, samples, clients, reason):
    path = tmp_path / "p.parquet"
    write_partition(path, [np.arange(6)], data())
    schema = pq.read_table(path).schema
    pq.write_table(pa.table({"sample": samples, "client": clients}, schema=schema), path)
    with pytest.raises(DataError, match=reason):
        read_partition(path, data())
    pq.write_table(pa.table({"sample": [0.5], "client": [0]}), path)
    with pytest.raises(DataError, match=r"columns are sample, client; it needs sample \(int64\)"):
        read_partition(path, data())
    with pytest.raises(DataError, match="it cannot be read as parquet; write it with"):
        read_partition(tmp_path / "gone.parquet", data())


def test_the_rest_of_a_partition_is_what_no_client_has(tmp_path, capsys):
    grouped = ("experiment=cpcfl_digits", "seed=4")
    assert main([*grouped, f"out={tmp_path}"]) == 0
    file = f"partition.path={tmp_path}/partition.parquet"
    data, parts = read_and_split(compose(*grouped))
    rest = ("experiment=simclr_digits", "data.split=train", "partition=rest", file)
    again, (left,) = read_and_split(compose(*rest))
    assert sorted(np.concatenate([*parts, left])) == list(range(len(data.samples)))
    np.testing.assert_array_equal(again.samples, data.samples)
    iid = ("experiment=fedmcc_digits", "data.split=train")
    assert main([*iid, f"out={tmp_path}"]) == 0
    with pytest.raises(DataError, match="have all 1438 samples of data=digits, so nothing is left"):
        read_and_split(compose(*rest))
    with pytest.raises(DataError, match="it was made for other data"):
        read_and_split(compose("experiment=simclr_digits", "partition=rest", file))
