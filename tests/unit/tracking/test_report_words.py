"""The report's words, and the clusters of each site."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coterie.config.privacy import PrivacyConfig
from coterie.tracking.report_words import client_clusters, in_words

SUMMARY = {"clients": 3, "bytes": {"down": 9, "up": 16000, "peer": 0}}


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def test_clusters_are_counted_at_each_site(tmp_path):
    sites = ["north", "south", "south", "north", "south"]
    path = write(tmp_path / "a.parquet", client_name=sites, cluster=[2, 0, 2, 2, -1])
    head, rows, note = client_clusters(path)
    assert head == ["client", "cluster 0", "cluster 2", "outliers"]
    assert rows == [["north", "0", "2", "0"], ["south", "1", "1", "1"]]
    assert note == ""
    assert client_clusters(tmp_path / "none.parquet") is None


def test_of_many_the_largest_are_shown_and_the_rest_is_told(tmp_path):
    clients = [k for k in range(40) for _ in range(2)]
    path = write(tmp_path / "a.parquet", client=clients, cluster=[k % 35 for k in range(80)])
    head, rows, note = client_clusters(path)
    assert (len(head), len(rows)) == (31, 30)
    assert note.startswith("30 of 40 clients, the 30 largest of 35 clusters")


def test_a_small_file_of_very_many_rows_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    many = pa.table({"client": np.zeros(1 << 22, np.int32), "cluster": np.zeros(1 << 22, np.int32)})
    with pq.ParquetWriter(path, many.schema) as file:
        for _ in range(50):
            file.write_table(many, row_group_size=1 << 22)
    assert path.stat().st_size < 1 << 24
    with pytest.raises(ValueError, match="bytes claim 209715200 rows"):
        client_clusters(path)


def test_as_many_names_as_rows_are_refused_before_they_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.tracking.report_words._KINDS", 100)
    names = [str(row) for row in range(101)]
    path = write(tmp_path / "a.parquet", client_name=names, cluster=[0] * 101)
    with pytest.raises(ValueError, match="more than 100 clients and clusters"):
        client_clusters(path)


def test_empty_clusters_are_counted_with_the_others():
    for most, said in (
        (None, "into 4 clusters"),
        (4, "into 4 clusters"),
        (6, "into 4 of 6 clusters"),
    ):
        assert said in in_words(SUMMARY, PrivacyConfig(), 4, most=most)[0]


@pytest.mark.parametrize(
    ("spent", "masks", "said"),
    [
        ({}, False, "Noise was off: nothing bounds"),
        ({}, False, "Masks were off: the server could read each client's own message."),
        ({}, True, "Masks were on: the server could read sums over clients"),
        ({"epsilon": 2.5, "delta": 1e-5, "unit": "sample"}, True, "ε is 2.5 for one sample, at"),
        ({}, True, "3 clients have trained one model together, and it sorts"),
        ({}, True, "They sent 16.0 kB"),
    ],
)
def test_what_protected_the_clients_is_said(spent, masks, said):
    privacy = PrivacyConfig(secure_aggregation=masks)
    assert any(said in text for text in in_words({**SUMMARY, "privacy": spent}, privacy, 4))


def test_with_noise_clients_send_no_numbers_and_the_page_is_not_covered():
    spent, masked = {"epsilon": 2.5, "delta": 1e-5, "unit": "sample"}, PrivacyConfig()
    masked = masked.model_copy(update={"secure_aggregation": True})
    for own in ({}, spent):
        told = " ".join(in_words({**SUMMARY, "privacy": own}, masked, 4))
        assert ("such as its loss, each client sends unmasked" in told) == (not own)
        assert ("scores, figures and tables on this page" in told) == bool(own)


def test_clients_that_were_simulated_to_fail_are_told():
    told = in_words(
        {**SUMMARY, "simulated": {"dropped": 1900, "stragglers": 3}}, PrivacyConfig(), 4
    )
    assert "Simulated among their tasks: 1,900 dropped, 3 stragglers." in told
    assert not any("Simulated" in text for text in in_words(SUMMARY, PrivacyConfig(), 4))


def test_outliers_are_told_as_a_share():
    found = in_words({**SUMMARY, "metrics": {"outliers": {"share": 0.128}}}, PrivacyConfig(), 4)
    assert "into 4 clusters; 12.8% of them are outliers, which belong to none." in found[0]


def test_a_run_that_has_not_ended_says_nothing():
    assert in_words({}, PrivacyConfig(), None) == []


def test_a_small_file_of_many_samples_fills_no_memory(tmp_path):
    path, many = tmp_path / "a.parquet", 1 << 20
    name = pa.DictionaryArray.from_arrays(np.zeros(many, np.int32), pa.array(["x" * 50_000]))
    part = pa.table({"client_name": name, "cluster": np.zeros(many, np.int32)})
    pq.write_table(part, path, compression="zstd", row_group_size=many, store_schema=False)
    assert path.stat().st_size < 1 << 20
    before = pa.default_memory_pool().max_memory()
    _, rows, _ = client_clusters(path)
    assert rows == [["x" * 50_000, f"{many:,}"]]
    assert pa.default_memory_pool().max_memory() - before < 1 << 27


@pytest.mark.parametrize(
    "columns",
    [
        {"client": [1], "cluster": ["a"]},
        {"client": [1], "cluster": [[1]]},
        {"client": [[1]], "cluster": [1]},
        {"client": [{"a": 1}], "cluster": [1]},
        {"client": [1]},
    ],
)
def test_columns_that_no_run_writes_are_an_error(tmp_path, columns):
    with pytest.raises((ValueError, LookupError)):
        client_clusters(write(tmp_path / "a.parquet", **columns))


def test_noise_of_clients_own_is_not_told_as_none():
    found = " ".join(in_words(SUMMARY, PrivacyConfig(), 4, 9.821))
    assert "Clients added noise to some of what they sent" in found
    assert "whose ε is 9.82. It does not cover the model" in found
    assert "Noise was off" not in found
    assert "Noise was off" in " ".join(in_words(SUMMARY, PrivacyConfig(), 4))
