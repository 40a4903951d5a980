"""Layers that stay with their clients, which the server's model lacks."""

from dataclasses import replace

import torch

from coterie.contract.method import Method
from coterie.contract.own_module import FederatesModule
from coterie.contract.phase import ServerState
from coterie.contract.roles import StateRoles
from coterie.contract.seeds import blank
from coterie.errors import listed


def not_scored(method: Method, server: ServerState) -> str | None:
    """Return which layers of the server's model no client has trained; None if all are trained."""
    if isinstance(method, FederatesModule):
        if not method.personal:
            return None
        return (
            f"{listed(method.personal)} stay with each client, so the module as a whole is not "
            "scored on the validation and test loaders; what clients hold out (method.holdout) "
            "scores each client's own."
        )
    if not (kept := _kept_in_model(method, server)):
        return None
    return (
        f"{listed(kept)} stay with each client (Role.KEEP), and the scores are of a model in which "
        "they have their initial values; average them, or read the clients' metrics instead."
    )


def _kept_in_model(method: Method, server: ServerState) -> list[str]:
    """Return the entries under `Role.KEEP` with initial values in the evaluated model."""
    roles, build = getattr(method, "roles", None), getattr(method, "build", None)
    if not isinstance(roles, StateRoles) or build is None:
        return []
    kept = roles.kept(blank(build))
    if not kept:
        return []
    moved = {
        slot: {name: t + 1 if t.is_floating_point() else t for name, t in tensors.items()}
        for slot, tensors in server.slots.items()
    }
    model = method.model_for(server, None).state_dict()
    other = method.model_for(replace(server, slots=moved), None).state_dict()
    unmoved = [value for name, value in model.items() if torch.equal(value, other[name])]
    return [
        name
        for name, value in kept.items()
        if any(value.shape == own.shape and torch.equal(value, own.cpu()) for own in unmoved)
    ]
