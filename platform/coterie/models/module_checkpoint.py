"""A user's module as a Lightning checkpoint, for `load_from_checkpoint`."""

import errno
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from coterie.contract.own_module import own_base
from coterie.errors import described
from coterie.tracking.atomic import replacing


def write_module(path: Path, module: Any, *, round_: int, epochs: int = 0) -> None:
    """Write a module's values and hyperparameters as Lightning does.

    `epochs` is the checkpoint's `epoch`.

    Raises:
        OSError: If it cannot be written.
    """
    package = own_base(module).__module__.partition(".")[0]
    content: dict[str, Any] = {
        "epoch": epochs,
        "global_step": 0,
        "round": round_,
        "pytorch-lightning_version": import_module(package).__version__,
        "state_dict": module.state_dict(),
    }
    hparams: Mapping[str, Any] = module.hparams
    if hparams:
        content["hparams_name"] = module._hparams_name
        content["hyper_parameters"] = dict(hparams)
    module.on_save_checkpoint(content)
    with replacing(path) as temporary:
        try:
            torch.save(content, temporary)
        except RuntimeError as error:  # raised for a full disk
            raise OSError(errno.EIO, described(error)) from error
