"""What users bring from other libraries: segmentation, fine-tuning, a text classifier, a language
model. Each is a few lines around the library's model, and nothing about clients."""

import lightning
import pytest
import torch
import torchvision
from lightning.pytorch.demos import LightningTransformer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from tests.builders.own_module import federated, rows


class Rectangles(Dataset):
    """Pictures with a bright rectangle, and its mask; samples are dictionaries."""

    def __len__(self):
        return 8

    def __getitem__(self, row):
        mask = torch.zeros(32, 32, dtype=torch.int64)
        mask[row : row + 8, 4:20] = 1
        picture = 0.1 * torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(row))
        return {"picture": picture + mask, "mask": mask}


class Segmentation(lightning.LightningModule):
    """LR-ASPP on MobileNetV3, by torchvision."""

    def __init__(self):
        super().__init__()
        build = torchvision.models.segmentation.lraspp_mobilenet_v3_large
        self.net = build(weights=None, weights_backbone=None, num_classes=2)

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.net(batch["picture"])["out"], batch["mask"])

    def validation_step(self, batch, batch_idx):
        found = self.net(batch["picture"])["out"].argmax(dim=1)
        self.log("hits", (found == batch["mask"]).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


@pytest.mark.slow
def test_segmentation(tmp_path):
    run = federated(tmp_path, Segmentation(), Rectangles(), loader_batch_size=3, holdout=0.25)
    assert rows(run)[1]["loss"] < rows(run)[0]["loss"]
    assert 0 <= rows(run, "validation")[0]["hits"] <= 1


class FineTuning(lightning.LightningModule):
    """A timm ViT whose body is frozen, and a new head with a group of its own."""

    def __init__(self):
        super().__init__()
        timm = pytest.importorskip("timm")
        self.net = timm.create_model(
            "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, num_classes=2
        )
        for name, value in self.net.named_parameters():
            value.requires_grad_("head" in name or "norm" in name)

    def training_step(self, batch, batch_idx):
        labels = (batch["mask"].sum(dim=(1, 2)) > 0).long()
        return cross_entropy(self.net(batch["picture"]), labels)

    def configure_optimizers(self):
        rest = [v for n, v in self.net.named_parameters() if v.requires_grad and "head" not in n]
        groups = [{"params": self.net.head.parameters(), "lr": 1e-2}, {"params": rest}]
        optimizer = torch.optim.SGD(groups, lr=1e-3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 1e-2, total_steps=self.trainer.estimated_stepping_batches
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


@pytest.mark.slow
def test_fine_tuning(tmp_path):
    module = FineTuning()
    keys = {"loader_batch_size": 3, "keep_optimizer": True}
    run = federated(tmp_path, module, Rectangles(), **keys)
    before, after = module.net.state_dict(), run.module.net.state_dict()
    frozen, trained = "blocks.0.attn.qkv.weight", "head.weight"
    assert torch.equal(before[frozen], after[frozen])
    assert not torch.equal(before[trained], after[trained])


class Sentences(Dataset):
    """Token ids of different lengths, padded by the user's collate function."""

    def __len__(self):
        return 12

    def __getitem__(self, row):
        ids = torch.arange(row, row + 4 + row % 3) % 20 + 1
        return {"input_ids": ids, "labels": row % 2}


def padded(samples):
    """A batch of sentences, with a mask."""
    ids = nn.utils.rnn.pad_sequence([s["input_ids"] for s in samples], batch_first=True)
    labels = torch.tensor([s["labels"] for s in samples])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


class TextClassifier(lightning.LightningModule):
    """A BERT of Hugging Face with random weights, which computes its own loss."""

    def __init__(self):
        super().__init__()
        transformers = pytest.importorskip("transformers")
        config = transformers.BertConfig(
            vocab_size=32,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
        self.net = transformers.BertForSequenceClassification(config)

    def training_step(self, batch, batch_idx):
        loss = self.net(**batch).loss
        self.log("loss_of_text", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


@pytest.mark.slow
def test_a_text_classifier(tmp_path):
    loader = torch.utils.data.DataLoader(Sentences(), 4, shuffle=True, collate_fn=padded)
    run = federated(tmp_path, TextClassifier(), loader, partition="iid", epochs=2)
    assert rows(run)[0]["loss_of_text"] == pytest.approx(0.7, abs=0.4)
    assert run.exit_code == 0


class Words(Dataset):
    """Windows of a sequence of word numbers, and the words that follow."""

    def __len__(self):
        return 16

    def __getitem__(self, row):
        words = (torch.arange(row, row + 9) * 7) % 30
        return words[:-1], words[1:]


class LanguageModel(LightningTransformer):
    """Without the download of its own data."""

    def prepare_data(self):
        pass


def test_lightnings_language_model(tmp_path):
    run = federated(tmp_path, LanguageModel(vocab_size=30), Words(), loader_batch_size=4)
    assert rows(run)[1]["loss"] < rows(run)[0]["loss"]
