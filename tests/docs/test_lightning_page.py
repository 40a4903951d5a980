"""docs/lightning.md, run as it is written: its programs, and its command."""

import os
import re
import shlex
from pathlib import Path

from tests.builders.forks import python

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "lightning.md").read_text(encoding="utf-8")


def _run(words: list[str], folder: Path) -> str:
    path = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
    done = python(words, folder, os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def test_coteries_module_under_a_plain_trainer(tmp_path: Path) -> None:
    (code,) = (block for block in BLOCKS if "as_lightning" in block)
    (tmp_path / "plain.py").write_text(code, encoding="utf-8")
    loss, shape, rate = _run(["plain.py"], tmp_path).splitlines()[-3:]
    assert 0 < float(loss.removeprefix("tensor(").removesuffix(")")) < 4
    assert re.fullmatch(r"torch\.Size\(\[\d+, \d+\]\)", shape)
    assert rate == "0.01"


def test_a_module_of_ones_own(tmp_path: Path) -> None:
    code = BLOCKS[0]
    serial = code.replace("rounds=5,", 'rounds=5, cluster={"backend": "serial"},')
    assert serial != code
    (tmp_path / "my_file.py").write_text(serial, encoding="utf-8")
    shown = _run(["my_file.py"], tmp_path).splitlines()
    assert float(next(line for line in shown if re.fullmatch(r"0\.\d+", line))) > 0.6
    assert (tmp_path / "model.ckpt").is_file()
    (command,) = re.findall(r"^```bash\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    words = shlex.split(command.replace("\\\n", " "))[1:]
    _run(["-m", "coterie.jobs", *words, "method.rounds=1", "cluster=serial"], tmp_path)
