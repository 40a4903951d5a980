"""Scores a user's module by its own validation and test steps, on the server's data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from coterie.config.schema import EvaluationConfig
from coterie.contract.loaders import LoaderSamples, Source
from coterie.contract.own_module import FederatesModule, Training, has_step
from coterie.contract.phase import ServerState
from coterie.contract.seeds import derive_seed
from coterie.contract.silent_logger import SilentLogger
from coterie.errors import CoterieError, RunError, reason
from coterie.evaluation.scorer import Evaluation, Scorer
from coterie.execution.own_trainer import score
from coterie.execution.settings import settings_kept
from coterie.execution.trainer import LightningTrainer
from coterie.tracking.failure_log import FailureLog
from coterie.tracking.loggers import Tracker
from coterie.tracking.module_logger import for_module

_UNSEEN = (
    "The module gives self.logger pictures or other objects, and no logger of the run takes them; "
    "tracking.loggers=[tensorboard] keeps them."
)
_HOOKS = {"validate": "validation_step", "test": "test_step"}


@dataclass
class ModuleScorer(Scorer):
    """Scorer that runs a module's `validation_step` between rounds, and `test_step` at the end too.

    Attributes:
        tracker: Has the loggers, of which the module gets one as `self.logger`.
        failures: Keeps the traceback of a hook that raised.
        note: Tells people a sentence.
    """

    config: EvaluationConfig
    method: FederatesModule
    samples: LoaderSamples
    trainer: LightningTrainer
    seed: int
    tracker: Tracker
    failures: FailureLog
    note: Callable[[str], None]
    sent: int = 0  # the driver has this data
    missed: tuple[int, ...] = ()
    _told: bool = False

    @property
    def group(self) -> str:
        """The group of the metrics of `quick`."""
        return "val"

    def full_name(self, name: str) -> str:
        """Return "val/val/acc" for "val/acc", since a module's names may have slashes."""
        return f"{self.group}/{name}"

    @property
    def _phases(self) -> int:
        """The phases so far, which are the steps of the run's loggers."""
        return self.tracker.position["phases"]

    def quick(self, server: ServerState) -> dict[str, float]:
        """Return what the global module logs in `validation_step`.

        Nothing without validation data, or where layers stay with their clients.
        """
        return self._score(server, "validate", self._phases + 1)

    def final(self, server: ServerState) -> Evaluation:
        """Return what the global module logs in its validation and test steps."""
        step = self._phases
        found = {
            "val": self._score(server, "validate", step),
            "test": self._score(server, "test", step),
        }
        return Evaluation(
            metrics={group: metrics for group, metrics in found.items() if metrics},
            embedding=torch.empty(0, 1),
            assignments=None,
            confidence=None,
            table=None,
        )

    @settings_kept()
    def _score(
        self, server: ServerState, stage: Literal["validate", "test"], step: int
    ) -> dict[str, float]:
        source, several = self.samples.sources[0], len(self.samples.sources) > 1
        loader = _loader(source, stage)
        if loader is None or several:  # with data of each client, clients validate
            return {}
        if self.method.personal:  # the global module has no trained values for these layers
            return {}
        module = self.method.module_for(server, None)
        if not has_step(module, _HOOKS[stage]):
            return {}
        silent = SilentLogger()
        epochs = server.round * self.method.epochs
        plan = Training(
            source=source,
            validation=loader,
            first_epoch=epochs,
            max_epochs=max(epochs, 1),
            arguments=self.method.trainer_arguments,
            step=step,
            logger=for_module(self.tracker.loggers) or silent,
        )
        try:
            found = score(self.trainer, module, plan, derive_seed(self.seed, stage), stage)
        except CoterieError:
            raise
        except Exception as error:  # the user's own code
            hook = _HOOKS[stage]
            self.failures.write_of_server(server.round, hook, error)
            raise RunError(
                f"round {server.round}: {hook} of {type(module).__name__} failed on the server "
                f"({type(error).__name__}: {reason(error)}); failures.log in the run's folder has "
                "the traceback."
            ) from error
        if silent.used and not self._told:
            self._told = True
            self.note(_UNSEEN)
        return found


def _loader(source: Source, stage: str) -> object:
    return source.validation if stage == "validate" else source.test
