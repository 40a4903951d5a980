"""MAE's networks: an encoder that sees some patches, and a decoder that predicts the others.

He et al., "Masked Autoencoders Are Scalable Vision Learners" (arXiv:2111.06377), section 3.
"""

from typing import Any

import torch
from torch import Tensor, nn

from coterie.contract import Task
from coterie.errors import ConfigError
from coterie.modules.lightly_parts import (
    MaskedVisionTransformerDecoderTIMM,
    MaskedVisionTransformerTIMM,
    VisionTransformer,
    get_at_index,
    patchify,
    set_at_index,
)
from coterie.precision import widened


class MaskedNetwork(nn.Module):
    """Encoder, decoder, and the linear layers before and after it."""

    def __init__(self, task: Task, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        if width % 4 or width % heads:
            raise ConfigError(
                f"method.decoder={width}: it has to be a multiple of 4 and of "
                f"method.decoder_heads={heads}."
            )
        self.encoder = task.encoder.build(task.shape)
        vit = transformer(self.encoder)
        if getattr(task.encoder, "weights", None) is None:
            MaskedVisionTransformerTIMM(vit)  # draws weights and sets positions as in the paper
        self.patches, self._prefix = vit.patch_embed.num_patches, vit.num_prefix_tokens
        self._side = vit.patch_embed.patch_size[0]
        self.embed = nn.Linear(vit.embed_dim, width)
        self.decoder = MaskedVisionTransformerDecoderTIMM(
            self.patches, width, blocks, heads, self._prefix
        )
        self.predict = nn.Linear(width, 3 * self._side**2)

    def forward(self, images: Tensor, order: Tensor, seen: int) -> tuple[Tensor, Tensor]:
        """Predict the patches that the encoder does not see.

        Args:
            images: Images (n, channels, side, side).
            order: Their patches in random order, int64 (n, patches).
            seen: How many of them, from the first, the encoder sees.

        Returns:
            Predictions and patches (n, patches − seen, 3 · pixels), in float32 or wider.
        """
        first = torch.arange(self._prefix, device=order.device).expand(len(order), -1)
        keep = torch.cat([first, order[:, :seen] + self._prefix], dim=1)
        mask = order[:, seen:] + self._prefix
        prepared = self.encoder.network.prepared(images)  # type: ignore[union-attr, operator]
        embedded = self.embed(self._encode(prepared, keep))
        every = embedded.new_zeros(len(order), self.patches + self._prefix, embedded.shape[-1])
        decoded = self.decoder(set_at_index(every, keep, embedded), idx_mask=mask)
        found = self.predict(get_at_index(decoded, mask))
        patches = widened(patchify(prepared, self._side))
        return widened(found), get_at_index(patches, order[:, seen:])

    def _encode(self, images: Tensor, keep: Tensor) -> Tensor:
        """Return the encoder's tokens of the patches that it sees."""
        as_built = {"weight_initialization": "skip", "pos_embed_initialization": "skip"}
        # Built here, because the encoder would have two names in the state.
        masked = MaskedVisionTransformerTIMM(transformer(self.encoder), **as_built)
        tokens: Tensor = masked.encode(images, idx_keep=keep)
        return tokens


def transformer(encoder: nn.Module) -> Any:
    """Return timm's vision transformer within an encoder.

    Raises:
        ConfigError: If it is another network, or its patches are in no square.
    """
    found: Any = getattr(getattr(encoder, "network", None), "network", None)
    if type(found) is not VisionTransformer or found.pos_embed is None:
        raise ConfigError(
            "encoder: MAE leaves out patches of a timm VisionTransformer, and this network is "
            "not one; choose one, such as encoder=timm:vit_tiny_patch16_224."
        )
    rows, columns = found.patch_embed.grid_size
    if rows != columns or len({*found.patch_embed.patch_size}) > 1:
        raise ConfigError(
            f"encoder: MAE takes square images of square patches, not {rows}×{columns} patches; "
            "make images square by encoder.size."
        )
    return found
