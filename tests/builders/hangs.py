"""An actor that hangs in a step of secure aggregation, where it runs one client."""

import time

from coterie.distributed.actors import ClientActor

CLIENT, STEP = 1, "share"


class HangingActor(ClientActor):
    def exchange(self, stage, call, step, message):
        if step == STEP and CLIENT in message_clients(self, call):
            time.sleep(600)
        return super().exchange(stage, call, step, message)


def message_clients(actor, call):
    """The clients whose masks a call holds."""
    masking = next(each for each in actor.worker.pipeline.stages if each.name == "masking")
    return masking.held.calls[call].parties
