"""FedMCC whose client 1 fails in the first round."""

from coterie.modules.fedmcc import FedMCC


class FailsOnce(FedMCC):
    class Config(FedMCC.Config):
        """The same."""

    def client(self, client, phase, slots):
        if client.id == 1 and phase.round == 1:
            raise ValueError("its disk is broken")
        return super().client(client, phase, slots)
