"""Scores a user's module by its own validation and test steps, on the server's data."""

from dataclasses import dataclass
from typing import Literal

import torch

from coterie.config.schema import EvaluationConfig
from coterie.contract.loaders import LoaderSamples, Source
from coterie.contract.own_module import FederatesModule, Training, has_step
from coterie.contract.phase import ServerState
from coterie.contract.seeds import derive_seed
from coterie.evaluation.scorer import Evaluation, Scorer
from coterie.execution.own_trainer import score
from coterie.execution.settings import settings_kept
from coterie.execution.trainer import LightningTrainer

_HOOKS = {"validate": "validation_step", "test": "test_step"}


@dataclass
class ModuleScorer(Scorer):
    """Runs `validation_step` between rounds, and `test_step` at the end too."""

    config: EvaluationConfig
    method: FederatesModule
    samples: LoaderSamples
    trainer: LightningTrainer
    seed: int
    sent: int = 0  # the driver has this data
    missed: tuple[int, ...] = ()

    @property
    def group(self) -> str:
        """The group of the metrics of `quick`."""
        return "val"

    def full_name(self, name: str) -> str:
        """Return "val/val/acc" for "val/acc", since a module's names may have slashes."""
        return f"{self.group}/{name}"

    def quick(self, server: ServerState) -> dict[str, float]:
        """Return what the global module logs in `validation_step`.

        Nothing without validation data, or where layers stay with their clients.
        """
        return self._score(server, "validate")

    def final(self, server: ServerState) -> Evaluation:
        """Return what the global module logs in its validation and test steps."""
        found = {"val": self._score(server, "validate"), "test": self._score(server, "test")}
        return Evaluation(
            metrics={group: metrics for group, metrics in found.items() if metrics},
            embedding=torch.empty(0, 1),
            assignments=None,
            confidence=None,
            table=None,
        )

    @settings_kept()
    def _score(self, server: ServerState, stage: Literal["validate", "test"]) -> dict[str, float]:
        found = [(each, _loader(each, stage)) for each in self.samples.sources]
        source, loader = found[0]
        if loader is None or len(found) > 1:  # with data of each client, clients validate
            return {}
        if self.method.personal:  # the global module has no trained values for these layers
            return {}
        module = self.method.module_for(server, None)
        if not has_step(module, _HOOKS[stage]):
            return {}
        plan = Training(source=source, validation=loader, arguments=self.method.trainer_arguments)
        return score(self.trainer, module, plan, derive_seed(self.seed, stage), stage)


def _loader(source: Source, stage: str) -> object:
    return source.validation if stage == "validate" else source.test
