"""Fine-tunes a run's encoder with shares of the labels: the semi-supervised protocol."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from coterie.config.schema import RunConfig
from coterie.contract.data import Indices
from coterie.contract.phase import ServerState
from coterie.contract.samples import picked
from coterie.contract.seeds import derive_seed
from coterie.evaluation.evaluator import Evaluator
from coterie.evaluation.scorer import Scorer
from coterie.evaluation.semi_supervised import fine_tune
from coterie.execution.device import client_device
from coterie.execution.without_trainer import determinism
from coterie.run.data import draw_pool
from coterie.run.setup import Assembly


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Scorer of fine-tuned copies of a run's encoder, on the samples of the probes.

    Attributes:
        config: The run's config; with `labelled_pool` only labels of the pool are used.
        evaluator: Splits the samples of known class.
        epochs: Epochs of each fine-tuning.
        check: Called before each; raises when the run is to stop.
    """

    config: RunConfig
    assembly: Assembly
    evaluator: Evaluator
    epochs: int
    check: Callable[[], None] = lambda: None

    @classmethod
    def of(
        cls, config: RunConfig, assembly: Assembly, scorer: Scorer, check: Callable[[], None]
    ) -> "FineTuning | None":
        """Return the fine-tuning that the config asks for; None without shares."""
        if not config.evaluation.labelled_shares:
            return None
        assert isinstance(scorer, Evaluator)  # `read_data` has refused the run otherwise
        epochs = config.evaluation.fine_tuning_epochs
        return cls(config=config, assembly=assembly, evaluator=scorer, epochs=epochs, check=check)

    def scores(self, server: ServerState, shares: Iterable[float]) -> dict[str, dict[str, float]]:
        """Return a classifier's scores for each share, such as `labels_1%`; none without labels."""
        if not self.evaluator.labelled:
            return {}
        return {f"labels_{100 * share:g}%": self._scores(server, share) for share in shares}

    def _scores(self, server: ServerState, share: float) -> dict[str, float]:
        self.check()
        data = self.assembly.data
        fit, held, test_labels = self.evaluator.held_out()
        samples, labels = data.samples, data.labels
        assert labels is not None
        fit, share = self._labelled(fit, share)
        if test_labels is not None and data.test_samples is not None:
            test = picked(data.test_samples, held), test_labels[held]
        else:
            test = picked(samples, held), labels[held]
        device = client_device(self.config)
        with determinism(self.config.deterministic and device.type != "cpu"):
            return fine_tune(
                self.assembly.method.model_for(server, None).encoder,
                (picked(samples, fit), labels[fit]),
                test,
                classes=len(data.classes),
                share=share,
                seed=derive_seed(self.config.seed, "evaluate", "fine-tuning"),
                epochs=self.epochs,
                device=device,
            )

    def _labelled(self, fit: Indices, share: float) -> tuple[Indices, float]:
        """Return the rows whose labels may be used, and the share that gives as many."""
        kept = self.config.labelled_pool
        if not kept:
            return fit, share
        pool = draw_pool(self.assembly.data, kept, self.config.seed)
        return fit[np.isin(fit, pool)], share / kept
