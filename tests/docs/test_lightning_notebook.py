"""docs/lightning.ipynb runs from its first cell to its last."""

import os
import sys
from pathlib import Path
from unittest import mock

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

ROOT = Path(__file__).resolve().parents[2]
KERNEL = ("-m", "ipykernel_launcher", "-f", "{connection_file}")


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The code cells, run in an empty folder."""
    folder = tmp_path_factory.mktemp("notebook")
    book = nbformat.read(ROOT / "docs" / "lightning.ipynb", as_version=4)
    client = nbclient.NotebookClient(book, timeout=240, resources={"metadata": {"path": folder}})
    client.create_kernel_manager()
    client.km.kernel_spec.argv = [sys.executable, *KERNEL]
    with mock.patch.dict(os.environ, {"PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"}):
        os.environ.pop("CI", None)
        ran = client.execute()
    return [cell for cell in ran.cells if cell.cell_type == "code"]


def value(cell):
    """What the cell's last line gave."""
    (found,) = [each for each in cell.outputs if each.output_type == "execute_result"]
    return found.data["text/plain"]


def test_under_15_lines_federate_what_knows_nothing_of_clients(cells):
    module, federation = cells[0].source, cells[1].source
    assert "coterie" not in module
    assert len(federation.splitlines()) < 15


def test_the_rounds_learn(cells):
    rounds = eval(value(cells[3]))
    assert [number for number, _ in rounds] == [1, 2, 3, 4, 5]
    assert rounds[-1][1] < rounds[0][1]
    assert float(value(cells[2])) > 0.6


def test_the_rest_shows_what_it_says(cells):
    pictures = [output for output in cells[4].outputs if "image/png" in output.get("data", {})]
    assert pictures
    assert "LitClassifier" in value(cells[5])
    one, other = value(cells[6]).split("tensor")[1:]
    assert one.strip(" ,)") != other.strip(" ,)")
