"""The losses of CC, MCC and FedMCC once more, in loops written from the printed formulas."""

import math

from torch import Tensor


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def contrast(u: Tensor, v: Tensor, tau: float, include_positive: bool = False) -> float:
    """L(u, v; tau) of eq. (1), over the rows of u and v."""
    total = 0.0
    for i in range(len(u)):
        positive = math.exp(cosine(u[i], v[i]) / tau)
        xi = positive if include_positive else 0.0
        for j in range(len(u)):
            if j != i:
                xi += math.exp(cosine(u[i], u[j]) / tau) + math.exp(cosine(u[i], v[j]) / tau)
        total -= math.log(positive / xi)
    return total / len(u)


def nt_xent(u: Tensor, v: Tensor, tau: float) -> float:
    """Cross-entropy of each of the 2n views' partner among the other 2n − 1 (SimCLR)."""
    views = [*u, *v]
    total = 0.0
    for i, anchor in enumerate(views):
        others = [j for j in range(len(views)) if j != i]
        denominator = sum(math.exp(cosine(anchor, views[j]) / tau) for j in others)
        partner = views[(i + len(u)) % len(views)]
        total -= math.log(math.exp(cosine(anchor, partner) / tau) / denominator)
    return total / len(views)


def entropy(c: Tensor) -> float:
    """H(c) of eq. (3)."""
    mass = [float(c[:, i].abs().sum()) for i in range(c.shape[1])]
    shares = [m / sum(mass) for m in mass]
    return -sum(p * math.log(p) for p in shares if p > 0.0)
