"""Words of other libraries, and what they are called here."""

from collections.abc import Collection

_CLIENTS = ("partition.clients", "clients")
_ROUNDS = ("method.rounds", "rounds")
_EPOCHS = ("method.epochs", "epochs")
_CLUSTERS = ("method.clusters", "evaluation.clusters")
_SHARE = ("participation.fraction", "participation")
_ACTORS = ("cluster.num_actors", "cluster")
_GPUS = ("cluster.gpus_per_client", "cluster")
_MEANT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("num_clients", "n_clients"), _CLIENTS),
    **dict.fromkeys(("num_rounds", "n_rounds", "global_rounds"), _ROUNDS),
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs", "local_epochs"), _EPOCHS),
    **dict.fromkeys(("n_clusters", "num_clusters", "num_classes", "k"), _CLUSTERS),
    **dict.fromkeys(("fraction_fit", "fraction", "client_fraction"), _SHARE),
    **dict.fromkeys(("num_actors", "actors", "num_workers", "workers"), _ACTORS),
    **dict.fromkeys(("gpus", "num_gpus"), _GPUS),
    **dict.fromkeys(("out", "output_dir", "save_dir"), ("run_dir",)),
    **dict.fromkeys(("logger", "loggers"), ("tracking.loggers",)),
    **dict.fromkeys(("noniid", "non_iid", "non-iid"), ("dirichlet",)),
    **dict.fromkeys(("fp16", "16"), ("16-mixed",)),
    **dict.fromkeys(("fp32", "float32", "32"), ("32-true",)),
    "accelerator": ("trainer",),
    "bf16": ("bf16-mixed",),
    "cpu": ("serial",),
    "device": ("accelerator",),
    "devices": ("trainer",),
    "epsilon": ("privacy.dp.budget",),
    "gpu": ("cuda", *_GPUS),
    "lr": ("method.learning_rate",),
}
_TOLD = {
    "alpha": "it is a key of partition=dirichlet",
    "model": "a network is chosen by encoder=NAME",
    "strategy": "it is method.strategy=NAME, of experiment=lightning",
    "trainer": "only experiment=lightning, for a module of yours, has a Trainer's arguments",
}
"""Words whose key another choice brings."""


def meant(word: str, options: Collection[str]) -> str | None:
    """Return the first of the options that a word of another library means; None without."""
    return next((option for option in _MEANT.get(word, ()) if option in options), None)


def told(word: str) -> str | None:
    """Return what to choose for a word that is a key of something else; None without."""
    return _TOLD.get(word)
