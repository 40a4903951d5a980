"""CF-CL's importance, written from the paper's formulas in plain loops over Python floats."""

import math


def squared(a, b):
    return sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True))


def triplet(a, p, n, margin):
    return max(0.0, squared(a, p) - squared(a, n) + margin)


def explicit(z, own, anchors, positives, foreign, margin, temperature):
    """P of eq. (12); `own` and `foreign` are the clusters of candidates and reserve."""
    losses = []
    for candidate in z:
        every = [triplet(a, p, candidate, margin) for a, p in zip(anchors, positives, strict=True)]
        losses.append(sum(every) / len(every))
    shares = {}
    for cluster in {*own, *foreign}:
        a, r = own.count(cluster), foreign.count(cluster)
        shares[cluster] = a / (a + r)
    probabilities = []
    for i, cluster in enumerate(own):
        macro = shares[cluster] / sum(shares.values())
        members = [j for j in range(len(own)) if own[j] == cluster]
        micro = math.exp(temperature * losses[i])
        micro /= sum(math.exp(temperature * losses[j]) for j in members)
        probabilities.append(macro * micro)
    return losses, probabilities


def centroid(points):
    return [sum(float(p[d]) for p in points) / len(points) for d in range(len(points[0]))]


def groups(points, labels):
    """Cluster to points, in the order of the clusters; none is empty."""
    pairs = list(zip(points, labels, strict=True))
    return {cluster: [p for p, own in pairs if own == cluster] for cluster in sorted(set(labels))}


def implicit(z, own, reserve, foreign, form, mean, deviation):
    """P of eq. (22)."""
    clusters = groups(z, own)
    centres = {c: centroid(points) for c, points in clusters.items()}
    there = [centroid(points) for points in groups(reserve, foreign).values()]
    farthest = max(squared(a, b) for a in z for b in reserve)
    scores = []
    for point, cluster in zip(z, own, strict=True):
        r = squared(point, centres[cluster])
        if form == "literal":
            scores.append(r * sum(squared(q, point) for q in reserve))
        else:
            edge = max(squared(other, centres[cluster]) for other in clusters[cluster])
            inwards = edge - r if r < edge * (1 - 1e-12) else 0.0  # else it is rounding
            scores.append(inwards * sum(farthest - squared(q, point) for q in reserve))
    overlap = {}
    for c in clusters:
        to_reserve = sum(squared(centres[c], q) for q in there) / len(there)
        others = [squared(centres[c], centres[o]) for o in clusters if o != c]
        overlap[c] = to_reserve - (sum(others) / len(others) if others else 0.0)
    if deviation is None:
        middle = sum(overlap.values()) / len(overlap)
        deviation = math.sqrt(sum((b - middle) ** 2 for b in overlap.values()) / len(overlap))
    weight = {}
    for c in clusters:
        own_scores = [s for s, of in zip(scores, own, strict=True) if of == c]
        density = 1.0
        if deviation > 0:
            density = math.exp(-((overlap[c] - mean) ** 2) / (2 * deviation**2))
        weight[c] = sum(own_scores) / len(own_scores) * density
    if sum(weight.values()) == 0:
        weight = {c: len(points) for c, points in clusters.items()}
    probabilities = []
    for score, cluster in zip(scores, own, strict=True):
        total = sum(s for s, of in zip(scores, own, strict=True) if of == cluster)
        micro = score / total if total > 0 else 1 / len(clusters[cluster])
        probabilities.append(weight[cluster] / sum(weight.values()) * micro)
    return scores, overlap, probabilities


def radius(z, own):
    """The mean over the clusters of the largest squared distance to the centroid."""
    radii = []
    for points in groups(z, own).values():
        middle = centroid(points)
        radii.append(max(squared(point, middle) for point in points))
    return sum(radii) / len(radii)


def regulariser(anchors, positives, received, margin, reduction):
    total = 0.0
    for a, p in zip(anchors, positives, strict=True):
        for z in received:
            total += triplet(a, p, z, margin) / (len(received) if reduction == "mean" else 1)
    return total / len(anchors)


def weight(t, total, interval, scale, rho_zeta):
    first = 1.0 if interval == 1 else math.exp(-(t % interval) / (interval - 1))
    return scale * (first + math.exp(t / total - rho_zeta))
