"""Terms of other libraries, and the names that Coterie has for them."""

from collections.abc import Collection

_CLIENTS = ("partition.clients", "clients")
_ROUNDS = ("method.rounds", "rounds", "method.iterations")
_EPOCHS = ("method.epochs", "epochs")
_CLUSTERS = ("method.clusters", "evaluation.clusters")
_SHARE = ("participation.fraction", "participation")
_ACTORS = ("cluster.num_actors", "cluster")
_GPUS = ("cluster.gpus_per_client", "cluster")
_MEANT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("num_clients", "n_clients"), _CLIENTS),
    **dict.fromkeys(("rounds", "num_rounds", "n_rounds", "global_rounds"), _ROUNDS),
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs", "local_epochs"), _EPOCHS),
    **dict.fromkeys(("n_clusters", "num_clusters", "num_classes", "k"), _CLUSTERS),
    **dict.fromkeys(("fraction_fit", "fraction", "client_fraction"), _SHARE),
    **dict.fromkeys(("num_actors", "actors", "num_workers", "workers"), _ACTORS),
    **dict.fromkeys(("min_clients", "min_fit_clients"), ("faults.min_participation",)),
    **dict.fromkeys(("image_size", "img_size", "resize"), ("data.size",)),
    **dict.fromkeys(("secagg", "secure_aggregation"), ("privacy.secure_aggregation",)),
    **dict.fromkeys(("seed_everything", "random_state", "random_seed"), ("seed",)),
    **dict.fromkeys(("gpus", "num_gpus"), _GPUS),
    **dict.fromkeys(("out", "output_dir", "save_dir"), ("run_dir",)),
    **dict.fromkeys(("noniid", "non_iid", "non-iid"), ("dirichlet",)),
    **dict.fromkeys(("fp16", "16"), ("16-mixed",)),
    **dict.fromkeys(("fp32", "float32", "32"), ("32-true",)),
    **dict.fromkeys(("batch_size", "batchsize", "bs"), ("method.batch_size", "batch_size")),
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
LOGGERS = ("comet", "mlflow", "neptune")
"""Trackers that Lightning has loggers of, besides those that `tracking` names."""
_OTHER_LOGGER = (
    "give a logger of Lightning by its class, as tracking.loggers="
    "'[{target: lightning.pytorch.loggers:MLFlowLogger, tracking_uri: \"sqlite:///mlflow.db\"}]'"
)
_TOLD = {
    **dict.fromkeys(("bf16", "bfloat16", "amp"), "give precision=bf16-mixed"),
    **dict.fromkeys(("fp16", "half"), "give precision=16-mixed"),
    **dict.fromkeys(("non_iid", "noniid"), "give partition=dirichlet or another of --help"),
    **dict.fromkeys(("csv", "tensorboard", "wandb"), "give tracking=NAME"),
    **dict.fromkeys(
        ("logger", "loggers"), "give tracking=NAME, or several as tracking.loggers=[NAME,NAME]"
    ),
    **dict.fromkeys(LOGGERS, _OTHER_LOGGER),
    **dict.fromkeys(
        ("epochs", "num_epochs", "n_epochs", "max_epochs", "local_epochs"),
        "this method trains for none; --help experiment=NAME lists its keys",
    ),
    **dict.fromkeys(
        ("rounds", "num_rounds", "n_rounds", "global_rounds"),
        "this method has no number of rounds to set",
    ),
    **dict.fromkeys(
        ("batch_size", "batchsize", "bs"),
        "this method has none; for a LightningModule of yours its loader decides",
    ),
    **dict.fromkeys(
        ("lr", "learning_rate"),
        "this method has none; for a LightningModule of yours it is an argument, such as module.lr",
    ),
    "alpha": "it is a key of partition=dirichlet",
    "devices": "one client's devices are method.trainer.devices, of experiment=lightning",
    "cpu": "give accelerator=cpu",
    "cuda": "give cluster=gpu",
    "model": "a network is chosen by encoder=NAME, and a LightningModule of yours by "
    "experiment=lightning module=package.module:Class",
    "mu": "it is method.strategy.mu, of experiment=lightning method.strategy=fedprox",
    "strategy": "it is method.strategy=NAME, of experiment=lightning",
    "trainer": "a Trainer's arguments go in method.trainer, of experiment=lightning",
    "data_dir": "data is found by data.path, or under data.root",
    "dirichlet_alpha": "give partition=dirichlet partition.alpha=NUMBER",
    "fast_dev_run": "try a run with method.rounds=1 and data.limit=100",
    "ckpt_path": "go on with resume=true run_dir=DIR",
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
    """Return the first option that a term of another library stands for; None if there is none."""
    return next((option for option in _MEANT.get(word, ()) if option in options), None)


def letter(word: str) -> str | None:
    """Return the Greek letter that a word stands for; None if there is none."""
    return _GREEK.get(word.lower())


def told(word: str) -> str | None:
    """Return advice for a key that only another choice has, such as `lr`; None if there is none."""
    return _TOLD.get(word)
