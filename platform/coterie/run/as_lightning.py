"""A config's method and data as plain Lightning objects."""

from lightning import LightningDataModule, LightningModule

from coterie.config.component import load_target, target_of
from coterie.config.schema import RunConfig
from coterie.contract.method import TrainsModule, build_method
from coterie.errors import ConfigError
from coterie.run.data import task_of


def as_lightning(config: RunConfig) -> tuple[LightningModule, LightningDataModule]:
    """Return the module that clients would train, and the data module, for a plain Trainer.

    The data is not split, and nothing is federated: of the config count method, data, encoder,
    augmentation and precision.

    Args:
        config: From `compose`.

    Returns:
        The module, with weights from PyTorch's global generator, and the data module, whose loaders
        give batches of the method's size.

    Raises:
        ConfigError: If the method trains no module, or the data has no loaders.
        DataError: If the data is missing.
    """
    data = load_target(target_of(config.data))(config.data)
    if not isinstance(data, LightningDataModule):
        name = target_of(config.data)
        raise ConfigError(
            f"data={name}: it is not a LightningDataModule; choose a data set that is."
        )
    data.batch_size = getattr(config.method, "batch_size", 128)  # type: ignore[attr-defined]
    task = task_of(config, data.arrays())  # type: ignore[attr-defined]  # as all data has
    method = build_method(config.method, task)
    if not isinstance(method, TrainsModule):
        name = target_of(config.method).rpartition(":")[2]
        raise ConfigError(f"method={name}: its clients train no module; choose one that trains.")
    return method.build(), data
