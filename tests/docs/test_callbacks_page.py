"""The examples of docs/callbacks.md run as they stand."""

import re
from pathlib import Path

import pytest

from coterie import Federation, compose
from tests.builders.runs import COMMAND

PAGE = Path(__file__).resolve().parents[2] / "docs" / "callbacks.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The page's classes as the module `mine`."""
    (tmp_path / "mine.py").write_text("\n\n".join(b for b in BLOCKS if "\nclass " in b))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_callbacks_follow_and_change_a_run(mine):
    from mine import Best

    small = (*COMMAND, "executor=lightning", "evaluation.every=1")
    best, ran = Best(), []
    for number, norm in enumerate((1000.0, 1e-6)):
        clip = f"callbacks=[{{target: mine:Clip, norm: {norm}}}]"
        config = compose(*small, clip, f"run_dir={mine}/{number}")
        ran.append(Federation(config, callbacks=[best]).run())
    assert best.round == 1
    assert best.score in [run.history["clustering/acc"][0].as_py() for run in ran]
    free, clipped = (run.history["loss"][1].as_py() for run in ran)
    assert free != clipped
    names = {"run": ran[0]}
    exec(BLOCKS[-1], names)
