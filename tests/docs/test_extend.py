"""docs/extend.md, run as it is written: its code, and its command with fewer images."""

import json
import os
import re
import shlex
from pathlib import Path

import yaml

from tests.builders.forks import python

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
CHEAP = ("cluster=serial", "data.count=120", "method.rounds=1", "evaluation.figures=false")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    return str(found)


def test_data_encoder_augmentation_partition_and_metric_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(block("python"), encoding="utf-8")
    words = shlex.split(block("bash").replace("\\\n", " "))
    paths = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
    own = ["-m", "coterie.jobs", *words[1:], *CHEAP]
    done = python(own, tmp_path, os.environ | {"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "extended"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["data"] == {"target": "mine:Bars", "count": 120}
    assert config["encoder"] == {"target": "mine:Tiny", "width": 8}
    assert config["augmentation"] == {"target": "mine:Noise", "strength": 0.2}
    assert config["aggregation"]["stages"] == [{"target": "mine:Half", "elements": 64}]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    (sent,) = {row["bytes/up/encoder"] for row in rows if "bytes/up/encoder" in row}
    down = max(row["bytes/down/encoder"] for row in rows if "bytes/down/encoder" in row)
    assert sent < 0.75 * down  # three clients each way; small tensors are whole
    summary = json.loads((run / "summary.json").read_text())
    assert summary["clients"] == 3
    assert 0 < summary["metrics"]["custom"]["largest_share"] <= 1
