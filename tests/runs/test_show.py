"""`coterie show`: a run's clusters on a page, and the file that it saves for `coterie predict`."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from coterie.commands.compose import compose
from coterie.jobs import predict, show
from coterie.models.named_clusters import read_named_clusters
from coterie.models.saved_model import read_description
from coterie.run.federation import Federation
from tests.builders.browser import CHROMIUM, shown
from tests.builders.runs import SERIAL

BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def page(finished_run):
    assert show.main([f"run={finished_run.run_dir}", "pictures=5", "samples=300"]) == 0
    return finished_run.run_dir / "clusters.html"


@pytest.fixture
def sites(tmp_path):
    digits = load_digits()
    for row in range(120):
        place = tmp_path / "sites" / "ab"[row % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.rint(digits.images[row] * (255 / 16)).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{row}.png")
    return tmp_path / "sites"


def constant(text, name):
    """A constant of the page's script."""
    found, _ = json.JSONDecoder().raw_decode(text.partition(f"{name} = ")[2])
    return found


def test_the_page_is_one_private_file_with_each_clusters_pictures(page):
    text = page.read_text()
    for cluster in range(10):  # those without a sample have names too
        assert f'id="cluster-{cluster}"' in text
    assert text.count("data:image/webp;base64,") >= 10
    assert not re.search(r'(?:src|href)="(?!data:|#cluster-)', text)
    assert "http" not in text.replace("http-equiv", "")
    assert page.stat().st_mode & 0o077 == 0


def test_the_pages_command_names_the_runs_folder_from_here(page, finished_run):
    assert f"coterie predict model={finished_run.run_dir} clusters=" in page.read_text()


def test_predict_takes_the_names_that_the_page_saves(page, finished_run, tmp_path):
    run, text = finished_run.run_dir, page.read_text()
    clusters = {str(k) for k in range(10)}
    planes = constant(text, "PLANES")
    split = min(planes, key=int)
    halves = {f"{split}{side}": f"half {side}" for side in "ab"}
    names = dict.fromkeys(clusters - {split}, "rest") | halves
    content = {"model": constant(text, "MODEL"), "names": names, "planes": {split: planes[split]}}
    (tmp_path / "clusters.json").write_text(json.dumps(content))
    digits = load_digits()
    np.save(tmp_path / "x.npy", np.rint(digits.images * (255 / 16)).astype(np.uint8)[:200])
    keys = [f"model={run}", f"input={tmp_path}/x.npy"]
    assert predict.main([*keys, f"output={tmp_path}/plain.parquet"]) == 0
    named = [f"output={tmp_path}/named.parquet", f"clusters={tmp_path}/clusters.json"]
    assert predict.main([*keys, *named]) == 0
    plain, own = (pq.read_table(tmp_path / f"{n}.parquet") for n in ("plain", "named"))
    assert set(own["cluster_name"].to_pylist()) <= {"rest", "half a", "half b"}
    for before, after in zip(
        plain["cluster"].to_pylist(), own["cluster_name"].to_pylist(), strict=True
    ):
        if before == int(split) and after == "rest":
            continue  # the merged others may be likelier together
        assert (after == "rest") == (before != int(split))


def test_other_data_than_the_runs_is_refused(finished_run, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(finished_run.run_dir, run)
    assert show.main([f"run={run}", "data.limit=20"]) == 2
    assert "are not those that the run has clustered" in capsys.readouterr().err
    (run / "assignments.parquet").unlink()
    assert show.main([f"run={run}"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "it has no assignments.parquet: the run has not ended; go on with resume=true." in told


@pytest.mark.parametrize("method", ["kmeans", "concord"])
def test_node_local_data_shows_prototypes_and_no_picture(sites, tmp_path, method):
    config = compose(
        f"experiment={method}",
        *SERIAL,
        "data=node_local",
        f"data.clients={{a: {sites}/a, b: {sites}/b}}",
        "data.source={target: coterie.datamodules.folders:ImageFolder, mode: L}",
        "encoder=raw",
        "method.clusters=4",
        f"run_dir={tmp_path}/run",
    )
    Federation(config).run()
    shutil.rmtree(sites)
    assert show.main([f"run={tmp_path}/run"]) == 0
    text = (tmp_path / "run" / "clusters.html").read_text()
    assert "data:image" not in text
    circles = text.count("<circle ") - 4
    assert circles == 4 if method == "kmeans" else circles > 4
    assert text.count("data-part=") >= 4


@BROWSER
@pytest.mark.parametrize("width", [1280, 400])
def test_it_fits_windows_and_loads_pictures_when_they_come_into_view(page, tmp_path, width):
    found = shown(page, width, tmp_path)
    assert found["content"] <= found["width"] == width
    assert found["out"] == []
    assert 0 < sum(found["pictures"]) < len(found["pictures"])


@BROWSER
def test_names_merges_and_splits_are_in_what_is_saved(page, tmp_path):
    planes = constant(page.read_text(), "PLANES")
    split = min(planes, key=int)
    script = f"""
      input("{split}b").value = "own";
      boxes.find((b) => b.dataset.split === "{split}").checked = true;
      merge("{(int(split) + 1) % 10}", "{(int(split) + 2) % 10}");
      return saved();"""
    saved = json.loads(shown(page, 1280, tmp_path, script)["said"])
    first, second = (str((int(split) + step) % 10) for step in (1, 2))
    assert saved["names"][second] == first
    assert saved["names"][f"{split}b"] == "own"
    assert split not in saved["names"]
    assert saved["planes"] == {split: planes[split]}


@BROWSER
def test_a_merge_takes_all_of_both_names_and_keeps_the_one_that_was_given(page, tmp_path):
    script = """
      merge("0", "6"); merge("2", "6");
      input("9").value = "sevens";
      merge("3", "9");
      const merged = JSON.parse(saved()).names;
      separate("2", "6");
      const told = parts[0].parentElement.nextElementSibling.textContent;
      return [merged, JSON.parse(saved()).names, told];"""
    merged, separated, told = shown(page, 1280, tmp_path, script)["said"]
    assert [merged[part] for part in "0263"] == ["0", "0", "0", "sevens"]
    assert [separated[part] for part in "026"] == ["0", "0", "6"]
    assert told == "one with 2"


@BROWSER
def test_the_page_opens_what_it_has_saved_and_predict_takes_any_name(page, finished_run, tmp_path):
    split = min(constant(page.read_text(), "PLANES"), key=int)
    script = f"""
      input("{split}b").value = "pick\\u00a0up\\u200d\\t";
      boxes.find((b) => b.dataset.split === "{split}").checked = true;
      const text = saved();
      fill({{}}, []);
      const told = ["{{", "[]", '{{"model": 1}}', `{{"model": "${{MODEL}}"}}`, text].map(opened);
      return [text, told, saved() === text];"""
    text, told, same = shown(page, 1280, tmp_path, script)["said"]
    assert [bool(sentence) for sentence in told] == [True, True, True, True, False]
    assert same
    (tmp_path / "clusters.json").write_text(text)
    folder = finished_run.run_dir / "model"
    description = read_description(folder)
    found = read_named_clusters(tmp_path / "clusters.json", folder, description)
    assert "pick up" in found.names


def other(table, **columns):
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (lambda table, n: other(table, sample=pa.array([-1] * n)), "clusters out of range"),
        (lambda table, n: other(table, sample=pa.array(["x"] * n)), "its columns are"),
        (lambda table, n: other(table, sample=pa.nulls(n, pa.int64())), "it lacks entries"),
        (lambda table, n: other(table, sample=pa.array([10**9] * n)), "are not those that the run"),
        (
            lambda table, n: other(table, cluster=pa.array([10] * n, pa.int32())),
            "clusters out of range",
        ),
        (lambda table, n: other(table, confidence=pa.array(["x"] * n)), "its columns are"),
        (lambda table, n: table.drop(["cluster"]), "its columns are"),
        (lambda table, n: table.slice(0, 0), "it lacks entries"),
        (lambda table, n: pa.concat_tables([table, table]), "are not those that the run"),
        (None, "it is damaged ("),
    ],
)
def test_assignments_that_no_run_writes_are_told(finished_run, tmp_path, capsys, changed, told):
    run = tmp_path / "run"
    unshown = shutil.ignore_patterns("clusters.html")
    shutil.copytree(finished_run.run_dir, run, ignore=unshown)
    path = run / "assignments.parquet"
    table = pq.read_table(path)
    if changed is None:
        path.write_bytes(b"PAR1")
    else:
        pq.write_table(changed(table, len(table)), path)
    assert show.main([f"run={run}"]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert told in shown
    assert "Traceback" not in shown
    assert not (run / "clusters.html").exists()
