"""DINO: a student sees parts of an image and predicts its slow teacher's output for the whole.

Caron et al., "Emerging Properties in Self-Supervised Vision Transformers" (arXiv:2104.14294), with
lightly's loss and head. Student, teacher and the mean of the teacher's outputs are averaged.
"""

import warnings
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from coterie.contract import Entry, Role, ServerState, StateRoles, Task
from coterie.contract.clusterer import Clusterer, UnitProjection
from coterie.gradcache import Terms, Views, gradient_cached, through
from coterie.modules.lightly_parts import DINOLoss, DINOProjectionHead
from coterie.modules.local_views import LocalViews, LocalViewsConfig
from coterie.modules.pretraining import ONLINE, Followed, FollowedConfig, Pretraining
from coterie.precision import in_float32

TEACHERS = 2
"""Views that the teacher sees too."""


class SelfDistillation(LocalViews, Followed):
    """The student, and the teacher, which follows it as an EMA."""

    representation = "target.encoder"
    config: "DINO.Config"

    def __init__(self, config: "DINO.Config", task: Task) -> None:
        super().__init__(config, task)
        self.criterion = DINOLoss(
            config.projection,
            teacher_temp=config.teacher_temperature,
            student_temp=config.student_temperature,
            center_momentum=config.center_momentum,
        )
        self.to(task.dtype)

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return the mean of H(P_t(x), P_s(x')) over teacher's views x and others x', eq. (3)."""
        taught = [through(self.target, view) for view in views[:TEACHERS]]
        found = [through(self.online, view) for view in views]
        return self.logged({"loss": self.distil(*taught, *found)})

    @in_float32
    def distil(self, *outputs: Tensor) -> Tensor:
        """Return the loss of teacher and student outputs, and update the teacher's mean."""
        loss: Tensor = self.criterion([*outputs[:TEACHERS]], [*outputs[TEACHERS:]])
        return loss


class DINO(Pretraining["DINO.Config", SelfDistillation]):
    """A student predicts its slow teacher's outputs from parts of an image; both averaged.

    Clients keep nothing. The teacher's encoder is evaluated.
    """

    network = SelfDistillation
    roles = StateRoles(
        *ONLINE,
        Entry(pattern="part.*", role=Role.RESET),
        Entry(pattern="target.*", role=Role.AVERAGE, slot="target"),
        Entry(pattern="criterion.center", role=Role.AVERAGE, slot="target"),
    )

    class Config(LocalViewsConfig, FollowedConfig):
        """DINO's configuration."""

        optimizer: Literal["adam", "sgd", "adamw"] = "adamw"
        """AdamW, Adam or SGD with momentum."""
        learning_rate: PositiveFloat = 5e-4
        weight_decay: Annotated[float, Field(ge=0.0)] = 0.04
        student_temperature: PositiveFloat = 0.1
        """τ_s."""
        teacher_temperature: PositiveFloat = 0.04
        """τ_t."""
        center_momentum: Annotated[float, Field(ge=0.0, le=1.0)] = 0.9
        """Momentum m of the mean of the teacher's outputs."""
        freeze_rounds: NonNegativeInt = 1
        """Rounds in which the projector's last layer stays fixed."""
        hidden: PositiveInt = 2048
        """Width of the projector's two hidden layers."""
        bottleneck: PositiveInt = 256
        """Width before the projector's last layer."""
        projection: PositiveInt = 4096
        """Width of the projector's output, K; 65,536 in the paper."""
        projector_norm: Literal["none"] = "none"
        """The projector has no BatchNorm."""
        batch_size: Annotated[int, Field(ge=2)] = 64

        def projector(self, width: int) -> nn.Module:
            """Return lightly's head, whose last layer has rows of unit length."""
            sizes = (width, self.hidden, self.bottleneck, self.projection)
            with warnings.catch_warnings():  # PyTorch has another weight_norm besides lightly's
                warnings.simplefilter("ignore", FutureWarning)
                head: nn.Module = DINOProjectionHead(*sizes)
            return head

    def enter_round(self, module: SelfDistillation, round_: int) -> None:
        """Freeze the projector's last layer in the first rounds."""
        last: Any = module.online.projector.last_layer
        last.weight_v.requires_grad_(round_ > self._config.freeze_rounds)

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the teacher's encoder, with its projector's outputs."""
        teacher = self.global_module(server).target
        return Clusterer(teacher.encoder, projection=UnitProjection(teacher.projector))
