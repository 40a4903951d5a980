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
    **dict.fromkeys(("batch_size", "batchsize", "bs"), ("method.batch_size",)),
    **dict.fromkeys(("val_split", "validation_split", "val_fraction"), ("holdout",)),
    **dict.fromkeys(("csv", "excel", "parquet", "table", "tabular"), ("manifest",)),
    **dict.fromkeys(("imagefolder", "images", "photos", "pictures"), ("image_folder",)),
    "accelerator": ("trainer",),
    "bf16": ("bf16-mixed",),
    "cpu": ("serial",),
    "data": ("input",),
    "device": ("accelerator",),
    "devices": ("trainer",),
    "epsilon": ("privacy.dp.budget",),
    "gpu": ("cuda", *_GPUS),
    "lr": ("method.learning_rate",),
}
_TOLD = {
    **dict.fromkeys(("bf16", "bfloat16", "amp"), "give precision=bf16-mixed"),
    **dict.fromkeys(("fp16", "half"), "give precision=16-mixed"),
    **dict.fromkeys(("non_iid", "noniid"), "give partition=dirichlet or another of --help"),
    **dict.fromkeys(("csv", "mlflow", "tensorboard", "wandb"), "give tracking=NAME"),
    "alpha": "it is a key of partition=dirichlet",
    "cpu": "give accelerator=cpu",
    "cuda": "give cluster=gpu",
    "model": "a network is chosen by encoder=NAME, and a LightningModule of yours by "
    "experiment=lightning module=package.module:Class",
    "mu": "it is method.strategy.mu, of experiment=lightning method.strategy=fedprox",
    "strategy": "it is method.strategy=NAME, of experiment=lightning",
    "trainer": "only experiment=lightning, for a module of yours, has a Trainer's arguments",
}
"""Words whose key another choice brings."""
_GREEK = {
    **dict.fromkeys(("lambda", "lambda_", "lamda", "lam"), "λ"),
    **dict.fromkeys(("temp", "tau"), "τ"),
    **dict.fromkeys(("beta", "beta_"), "β"),
    **dict.fromkeys(("eta", "eta_"), "η"),
    "gamma": "γ",
    "mu": "μ",
    "rho": "ρ",
}
"""Words that papers write as a letter."""


def meant(word: str, options: Collection[str]) -> str | None:
    """Return the first of the options that a word of another library means; None without."""
    return next((option for option in _MEANT.get(word, ()) if option in options), None)


def letter(word: str) -> str | None:
    """Return the Greek letter that a word stands for; None without."""
    return _GREEK.get(word.lower())


def told(word: str) -> str | None:
    """Return what to choose for a word that is a key of something else; None without."""
    return _TOLD.get(word)
