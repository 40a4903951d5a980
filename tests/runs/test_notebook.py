"""A run in a real notebook: its progress, its scores, its history and its curves."""

import sys
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
from tests.builders.runs import COMMAND  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = [text for text in COMMAND if not text.startswith("tracking.")]
ARGUMENTS += ["method.representation_rounds=30"]  # longer than the pause between two drawings


KERNEL = ("-m", "ipykernel_launcher", "-f", "{connection_file}")


class Watched(nbclient.NotebookClient):
    """Keeps every state of the outputs that a cell replaces."""

    def process_message(self, msg, cell, cell_index):
        if msg["msg_type"] == "update_display_data":
            self.updates.append(msg["content"]["data"]["text/html"])
        return super().process_message(msg, cell, cell_index)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The cells of a notebook that ran, and the states of its progress."""
    folder = tmp_path_factory.mktemp("notebook")
    paths = [str(ROOT / "platform"), str(ROOT)]
    sources = (
        f"import os, sys; sys.path[:0] = {paths}; os.environ.pop('CI', None)\n"
        "from coterie import Federation, compose\n"
        f"run = Federation(compose(*{ARGUMENTS}, 'run_dir={folder}/run')).run()",
        "run.plot()",
        "run.history.to_pylist()[-1]['clustering/acc'] == run.metrics['clustering']['acc']",
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    client = Watched(book, timeout=240, kernel_name="python3")
    client.updates = []
    client.create_kernel_manager()
    client.km.kernel_spec.argv = [sys.executable, *KERNEL]
    return client.execute().cells, client.updates


def shown(cell):
    return [output.get("data", {}) for output in cell.outputs]


def test_the_progress_is_replaced_in_place_and_removed(ran):
    _, updates = ran
    assert any("/31" in state for state in updates)
    assert updates[-1] == ""


def test_the_cell_shows_the_scores(ran):
    cells, _ = ran
    assert [o for o in cells[0].outputs if o.output_type == "stream" and o.name == "stderr"] == []
    texts = [text for data in shown(cells[0]) for text in map(str, data.values())]
    assert any("completed" in text for text in texts)
    assert any("FedMCC" in text for text in texts)


def test_the_plot_is_a_picture(ran):
    (output,) = shown(ran[0][1])
    assert output["image/png"]


def test_the_last_row_of_the_history_has_the_final_scores(ran):
    (output,) = shown(ran[0][2])
    assert output["text/plain"] == "True"
