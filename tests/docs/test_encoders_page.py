"""docs/encoders.md: its encoder of a Hugging Face model, run as it is written."""

import os
import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from coterie import load_model
from tests.builders.forks import python

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8")
SAVE = """
from transformers import ViTConfig, ViTModel
sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
ViTModel(ViTConfig(**sizes, image_size=16, patch_size=8)).save_pretrained("vit")
"""


def test_a_model_of_hugging_face_is_an_encoder(tmp_path: Path, monkeypatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    (code,) = [block for block in blocks if "AutoModel" in block]
    (tmp_path / "my_encoder.py").write_text(code, encoding="utf-8")
    (tmp_path / "save.py").write_text(SAVE, encoding="utf-8")
    paths = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    saved = python(["save.py"], tmp_path, environment)
    assert saved.returncode == 0, saved.stderr
    (tmp_path / "pictures").mkdir()
    for number in range(20):
        pixels = np.random.default_rng(number).integers(256, size=(32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{number}.png")
    command = (
        "-m coterie.jobs train experiment=kfed data=image_folder data.path=pictures data.size=32 "
        "encoder.target=my_encoder:HuggingFace method.clusters=2 partition=iid partition.clients=2 "
        "cluster=serial evaluation.figures=false run_dir=runs/mine"
    )
    own = [*command.split(), f"encoder.name={tmp_path / 'vit'}"]
    done = python(own, tmp_path, environment)
    assert done.returncode == 0, done.stderr
    monkeypatch.syspath_prepend(tmp_path)
    model = load_model(tmp_path / "runs" / "mine", trust=["my_encoder"])
    assert model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).embedding.shape == (2, 16)
