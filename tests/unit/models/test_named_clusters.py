"""Files of names: merges, splits, and what is refused of them."""

import json

import pytest
import torch
from safetensors.torch import save_file

from coterie.contract.clusterer import Prediction
from coterie.errors import ConfigError
from coterie.models.named_clusters import model_digest, read_named_clusters

PLANES = {"1": {"direction": [1.0, 0.0], "threshold": 0.5}}
MODEL = {"clusters": 3, "features": 2, "outliers": False}
NAMES = {"0": "cat", "1a": "dog", "1b": " cat ", "2": "bird"}
PREDICTION = Prediction(
    torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 9.0]]),
    torch.tensor([[0.25, 0.5, 0.25], [0.25, 0.5, 0.25], [0.0, 1.0, 0.0]]),
)


@pytest.fixture
def folder(tmp_path):
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    return tmp_path


def written(folder, **changes):
    path = folder / "clusters.json"
    content = {"model": model_digest(folder), "names": NAMES, "planes": PLANES}
    path.write_text(json.dumps({**content, **changes}))
    return path


def test_parts_of_a_name_are_one_cluster_and_halves_lie_on_either_side(folder):
    found = read_named_clusters(written(folder), folder, MODEL)
    assert found.names == ("cat", "dog", "bird")
    named = found.of(PREDICTION)
    expected = [[0.25, 0.5, 0.25], [0.75, 0.0, 0.25], [0.0, 1.0, 0.0]]  # on the plane: half a
    assert torch.equal(named.probabilities, torch.tensor(expected))
    assert torch.equal(named.embedding, PREDICTION.embedding)


def test_a_plane_that_no_name_uses_splits_nothing(folder):
    names = {"0": "0", "1": "1", "2": "2"}
    found = read_named_clusters(written(folder, names=names), folder, MODEL)
    assert torch.equal(found.of(PREDICTION).probabilities, PREDICTION.probabilities)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "0" * 64}, "for another model"),
        ({"names": {"0": "a", "1": "b"}}, "lacks part 2"),
        ({"names": {**NAMES, "3": "a"}}, "unknown part 3"),
        ({"names": {**NAMES, "1": "a"}}, "unknown part 1"),
        ({"names": {**NAMES, "x": "a"}}, "unknown part x"),
        ({"names": {"0": "a", "1a": "b", "2": "c"}}, "lacks part 1b"),
        ({"names": {**NAMES, "0": "  "}}, "part 0 has no name"),
        ({"names": {**NAMES, "0": "a\x1b[2J"}}, "part 0 has no name"),
        ({"names": {**NAMES, "0": 7}}, "names.0"),
        ({"planes": {}}, "unknown part 1a|lacks part 1"),
        ({"planes": {"one": PLANES["1"]}}, "invalid literal"),
        ({"planes": {"1": {"direction": [1.0], "threshold": 0.0}}}, "not have 2 finite numbers"),
        (
            {"planes": {"1": {"direction": [1.0, 1e999], "threshold": 0.0}}},
            "not have 2 finite numbers",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_a_sentence(folder, changes, why):
    with pytest.raises(ConfigError, match=f"clusters=.*({why}).*; save it again") as refused:
        read_named_clusters(written(folder, **changes), folder, MODEL)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_json_or_missing_is_refused(folder):
    path = folder / "clusters.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="clusters="):
        read_named_clusters(path, folder, MODEL)
    path.unlink()
    with pytest.raises(
        ConfigError, match=r"clusters=.*clusters\.json: there is no such file; save"
    ):
        read_named_clusters(path, folder, MODEL)


def test_outliers_keep_their_place_unless_their_name_is_a_clusters_too(folder):
    model, names = MODEL | {"clusters": 2, "outliers": True}, {"-1": "none", "0": "a", "1": "b"}
    found = read_named_clusters(written(folder, names=names), folder, model)
    assert (found.names, found.outliers) == (("a", "b", "none"), True)
    assert torch.equal(found.of(PREDICTION).probabilities, PREDICTION.probabilities)
    merged = read_named_clusters(written(folder, names=names | {"1": "none"}), folder, model)
    assert (merged.names, merged.outliers) == (("a", "none"), False)
    expected = torch.tensor([[0.25, 0.75], [0.25, 0.75], [0.0, 1.0]])
    assert torch.equal(merged.of(PREDICTION).probabilities, expected)
    with pytest.raises(ConfigError, match="lacks part -1"):
        read_named_clusters(written(folder, names={"0": "a", "1": "b"}), folder, model)
    with pytest.raises(ConfigError, match="unknown part -1"):
        read_named_clusters(written(folder, names=NAMES | {"-1": "a"}), folder, MODEL)
