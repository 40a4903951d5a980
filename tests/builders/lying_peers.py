"""CF-CL with a device that sends its neighbours what is none of its data."""

from dataclasses import replace

import torch

from coterie.modules.cfcl import CFCL


class LyingPeer(CFCL):
    class Config(CFCL.Config):
        """CF-CL's, and the values that the culprit sends with random signs."""

        lie: float = 0.0
        culprit: int = 1

    def client(self, client, phase, slots):
        outcome = super().client(client, phase, slots)
        if client.id != self._config.culprit or not self._config.lie:
            return outcome
        draw = torch.Generator().manual_seed(0)
        spoiled = {
            receiver: {
                key: (torch.randint(2, value.shape, generator=draw) * 2 - 1).to(value.dtype)
                * self._config.lie
                for key, value in message.items()
            }
            for receiver, message in outcome.peer_messages.items()
        }
        return replace(outcome, peer_messages=spoiled)
