"""An actor that hangs in a step of secure aggregation, where it runs one client."""

import time

from coterie.distributed.actors import ClientActor

CLIENT, STEP = 1, "share"


class HangingActor(ClientActor):
    def exchange(self, call, step, message):
        if step == STEP and CLIENT in self.worker.masked.calls[call].parties:
            time.sleep(600)
        return super().exchange(call, step, message)
