"""Local training with differential privacy of single samples: DP-SGD with exact noise.

Abadi et al., "Deep Learning with Differential Privacy" (CCS 2016): each sample's gradient, from
Opacus' hooks, is clipped, and noise is added to the sum of a batch. Clipped gradients are rounded
towards zero to integers, as clients' updates are (`clipping`), and the noise is a discrete
Gaussian, so rounding tells nothing. It is a function of a secret key, the step and the sum.
"""

import contextlib
import hmac
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.optim import Optimizer

from coterie.aggregation.clipping import STEPS
from coterie.aggregation.discrete_gaussian import Stream, discrete_gaussian
from coterie.aggregation.own_gradients import sample_hooks
from coterie.contract.client import Plan
from coterie.errors import ConfigError, ContractError
from coterie.precision import widened

_BELOW = 1 - 2.0**-16
"""Keeps the rounding of float32 from making a gradient longer than the clip norm."""


@dataclass(frozen=True)
class SampleNoise:
    """The noise of one client's training.

    Attributes:
        clip: L2 norm to which each sample's gradient is clipped.
        sigma: Standard deviation of the noise in a batch's sum, in units of clip times 2^-20.
        epochs: How often each sample takes part in a sum.
        key: The key of the noise, 32 bytes.
    """

    clip: float
    sigma: int
    epochs: int
    key: bytes


def check_unmixed(module: nn.Module) -> None:
    """Raise a ConfigError if the module mixes samples of a batch, or keeps statistics of them."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) or (
            isinstance(part, _InstanceNorm) and part.track_running_stats
        ):
            raise ConfigError(
                f"privacy.dp.unit=sample: {name} is a {type(part).__name__}, after which no sample "
                "has its own gradient; choose a network without, such as one with "
                "encoder.norm=group."
            )


def check_installed() -> None:
    """Raise a ConfigError if Opacus is missing."""
    if find_spec("opacus") is None:
        raise ConfigError(
            "privacy.dp.unit=sample: opacus, which computes each sample's gradient, is not "
            "installed; install it with pip install 'coterie[dp]'."
        )


@contextlib.contextmanager
def noisy_training(
    module: LightningModule, plan: Plan, noise: SampleNoise, epochs: int
) -> Iterator[None]:
    """Make the module's optimiser step by clipped and noisy gradients within the context.

    Args:
        module: The module to train.
        plan: How it trains.
        noise: What is paid for.
        epochs: Those of the plan, and of what the task has trained before.

    Raises:
        ConfigError: If a sample has no gradient of its own in the module.
        ContractError: If these are more than what is paid for.
    """
    if epochs > noise.epochs:
        raise ContractError(
            f"privacy.dp.unit=sample covers {noise.epochs} epochs per task; train for no more."
        )
    check_unmixed(module)
    own = replace(noise, key=hmac.digest(noise.key, f"to epoch {epochs}".encode(), "sha256"))
    remove_hooks = sample_hooks(module, "mean")
    configure = module.configure_optimizers

    def noisy() -> Optimizer:
        found = configure()
        if not isinstance(found, Optimizer):
            raise ConfigError(
                "privacy.dp.unit=sample: configure_optimizers gave a "
                f"{type(found).__name__}; return one optimiser."
            )
        return noisy_optimizer(found, own, plan.batch_size)

    module.configure_optimizers = noisy  # type: ignore[method-assign]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook|grad and param")
            yield
    finally:
        del module.configure_optimizers
        remove_hooks()


def noisy_optimizer(optimizer: Optimizer, noise: SampleNoise, batch_size: int) -> Optimizer:
    """Return an optimiser that clips each sample's gradient and adds noise to the sum."""
    from opacus.optimizers import DPOptimizer

    class Noisy(DPOptimizer):  # type: ignore[misc]  # Opacus has no types
        """Opacus' optimiser with exact sums and exact noise in place of floating-point ones."""

        steps = 0

        def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
            """Take a step, and clear the per-sample gradients."""
            loss: Tensor | None = super().step(closure)
            for parameter in self.params:
                parameter.grad_sample = parameter.summed_grad = None
            self.steps += 1
            return loss

        def clip_and_accumulate(self) -> None:
            """Sum the clipped gradients, as integers."""
            grads = [widened(g.detach()).flatten(1) for g in self.grad_samples]
            # In float64: the error of a long float32 sum would exceed what `_BELOW` allows.
            norms = torch.stack([g.norm(dim=1, dtype=torch.float64) for g in grads]).norm(dim=0)
            finite = norms.isfinite()
            if not bool(finite.all()):  # such a sample does not count
                grads = [g.nan_to_num(0.0, 0.0, 0.0) for g in grads]
            scale = (finite * STEPS * _BELOW / norms.clamp_min(noise.clip).nan_to_num(1.0))[:, None]
            for parameter, grad in zip(self.params, grads, strict=True):
                whole = (grad * scale.to(grad.dtype)).trunc().int().sum(dim=0)
                parameter.summed_grad = whole.view(parameter.shape)

        def add_noise(self) -> None:
            """Add the step's noise to all parameters' sums."""
            parts = [p.summed_grad.cpu().flatten() for p in self.params]
            whole = torch.cat(parts).numpy()
            context = f"step {self.steps} ".encode()
            key = hmac.digest(noise.key, context + whole.tobytes(), "sha256")
            whole = whole + discrete_gaussian(Stream(key), noise.sigma, len(whole))
            noisy = torch.from_numpy(whole).double() * (noise.clip / STEPS)
            sizes = [len(part) for part in parts]
            for parameter, grad in zip(self.params, torch.split(noisy, sizes), strict=True):
                parameter.grad = grad.view(parameter.shape).to(parameter)

    return Noisy(
        optimizer,
        noise_multiplier=noise.sigma / STEPS,
        max_grad_norm=noise.clip,
        expected_batch_size=batch_size,
    )
