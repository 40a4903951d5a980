"""Evaluates a run's checkpoint: clusters, probes, fine-tuning, and scores without labels."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.config.about import about
from coterie.config.component import target_of
from coterie.config.loading import dump_config
from coterie.config.schema import RunConfig
from coterie.contract.own_module import FederatesModule
from coterie.contract.phase import ServerState
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError
from coterie.evaluation.scorer import UNSUPERVISED, Evaluation
from coterie.execution.backend import Backend
from coterie.execution.node_local_data import is_node_local
from coterie.run.checks import check_shares
from coterie.run.ending import misfit
from coterie.run.fine_tuning import FineTuning
from coterie.run.interrupts import Interrupts
from coterie.run.outputs import draw_evaluation
from coterie.run.setup import (
    Assembly,
    assemble,
    make_backend,
    make_evaluator,
    make_unsupervised_evaluator,
)
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.formatting import without_auroc
from coterie.tracking.metrics_log import finite, flat
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.score_names import score_tables

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvaluatedRun:
    """The result of an evaluation."""

    folder: Path
    metrics: Mapping[str, Mapping[str, float]]
    outputs: tuple[Path, ...]

    @property
    def tables(self) -> list[dict[str, Mapping[str, float]]]:
        """The metrics in tables, by row name: clusters, classifiers, others."""
        return score_tables(
            {group: without_auroc(scores) for group, scores in self.metrics.items()}
        )


@dataclass
class RunEvaluation:
    """The evaluation of one checkpoint of a run.

    Attributes:
        checkpoint: "latest", "best" or a round.
        shares: Shares of the labels to fine-tune with, one fine-tuning each.
        epochs: Epochs of each fine-tuning.
        changes: Keys in which the config differs from the run's; recorded beside the scores.
        folder: Where to write; by default `evaluation-<checkpoint>/` in the run's directory.
    """

    config: RunConfig
    directory: RunDirectory
    checkpoint: str | int
    shares: Sequence[float] = (0.01, 0.1)
    epochs: int = 100
    changes: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    _assembly: Assembly = field(init=False, repr=False)

    def run(self) -> EvaluatedRun:
        """Read the checkpoint, score it, and write metrics.json and figures.

        Raises:
            ConfigError: If the run's data is node-local, its model a user's module, or more labels
                are asked for than its training held out.
            DataError: If the checkpoint or the data is missing.
        """
        if is_node_local(self.config):
            raise ConfigError(
                f"run={self.directory.path}: its data stays with its clients and is scored by the "
                "run itself; read its summary.json."
            )
        check_shares("labelled_shares", self.shares, self.config.labelled_pool)
        self._assembly = assemble(self.config, trains=False)
        if isinstance(self._assembly.method, FederatesModule):
            raise ConfigError(
                f"run={self.directory.path}: it trained a LightningModule, which only its own "
                "validation_step and test_step score; read its summary.json."
            )
        with Interrupts() as interrupts:
            backend = make_backend(
                self._assembly.workload, lambda: interrupts.check("nothing was written")
            )
            try:
                return self._evaluate(backend, interrupts)
            except Exception as error:
                found = misfit(error, f"run={self.directory.path}", self.config)
                if found is error:
                    raise
                raise found from error
            finally:
                backend.close()

    def _evaluate(self, backend: Backend, interrupts: Interrupts) -> EvaluatedRun:
        loaded = load_checkpoint(self.directory.checkpoints, backend, self.checkpoint)
        server = loaded.state.server
        evaluator = make_evaluator(self.config, self._assembly, backend)
        evaluation = evaluator.final(server)
        metrics = dict(evaluation.metrics)
        metrics |= FineTuning(
            config=self.config,
            assembly=self._assembly,
            evaluator=evaluator,
            epochs=self.epochs,
            check=lambda: interrupts.check("nothing was written"),
        ).scores(server, self.shares)
        if UNSUPERVISED not in metrics:
            unsupervised = make_unsupervised_evaluator(self.config, self._assembly, backend)
            metrics[UNSUPERVISED] = unsupervised.scores(server)
        default = self.directory.path / f"evaluation-{loaded.path.name.strip('.')}"
        return self._write(self.folder or default, server, metrics, evaluation)

    def _write(
        self,
        folder: Path,
        server: ServerState,
        metrics: Mapping[str, Mapping[str, float]],
        evaluation: Evaluation,
    ) -> EvaluatedRun:
        record: dict[str, Any] = {
            "round": server.round,
            "method": target_of(self.config.method).rpartition(":")[2],
            "dataset": self._assembly.data.name,
            "seed": self.config.seed,
            "settings": {
                "labelled_shares": list(self.shares),
                "fine_tuning_epochs": self.epochs,
                **self.changes,
            },
            "metrics": {
                group: {name: finite(value) for name, value in scores.items()}
                for group, scores in metrics.items()
            },
        }
        text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
        write_text_atomically(folder / "metrics.json", text + "\n")
        outputs = [folder / "metrics.json"]
        if self.config.evaluation.figures:
            outputs += draw_evaluation(
                folder,
                evaluation,
                self._assembly.data,
                seed=derive_seed(self.config.seed, "evaluate", "figures") % 2**31,
                line=about([self.config]),
                tell=_logger.warning,
            )
        done = EvaluatedRun(folder=folder, metrics=metrics, outputs=tuple(outputs))
        if "wandb" in self.config.tracking.loggers:
            self._send(done, record)
        return done

    def _send(self, done: EvaluatedRun, record: Mapping[str, Any]) -> None:
        """Send the evaluation to W&B, as a run that uses the evaluated model."""
        from coterie.tracking.wandb_logger import (  # a slow import
            WandbRunLogger,
            model_artifact,
            send_to_wandb,
        )

        def fill(logger: WandbRunLogger) -> None:
            if (artifact := model_artifact(self.directory.path)) is not None:
                logger.use_model(artifact)
            logger.log_metrics(flat(done.metrics), step=record["round"])
            for path in done.outputs:
                if path.suffix == ".png":
                    logger.log_image(f"figures/{path.stem}", [str(path)])

        name = f"{self.config.experiment}-{self.directory.path.name}-{done.folder.name}"
        config = self.config.tracking.wandb.model_copy(update={"job_type": "evaluate"})
        about_run = {"config": dump_config(self.config), **record["settings"]}
        send_to_wandb(config, done.folder, name, about_run, fill)
