"""t-SNE of vectors that are all but equal or of extreme size, which scikit-learn's dies of."""

import os
import subprocess
import sys

import numpy as np
import pytest

from coterie.evaluation.embedding import _map

NORMALS = np.random.default_rng(0).normal(size=(60, 8))
VECTORS = {
    "ones": np.ones((60, 8)),
    "zeros": np.zeros((60, 8)),
    "constant": np.full((300, 64), 0.1, np.float32),
    "nearly constant": 1 + NORMALS * 1e-16,
    "one other": np.where(np.arange(60)[:, None] == 7, 1.0, np.zeros((60, 8))),
    "tiny": NORMALS * 1e-30,
    "subnormal": (NORMALS * 1e-42).astype(np.float32),
    "huge": NORMALS * 1e300,
}


@pytest.mark.parametrize("kind", VECTORS)
def test_collapsed_and_extreme_vectors_are_drawn(kind, tmp_path):
    """In a process of its own, which may crash without taking the tests along."""
    vectors, target = tmp_path / "x.npy", tmp_path / "e.png"
    np.save(vectors, VECTORS[kind])
    code = (
        "import sys, pathlib, numpy as np\n"
        "from coterie.evaluation.embedding import embedding_figure\n"
        "x, path = np.load(sys.argv[1]), pathlib.Path(sys.argv[2])\n"
        "embedding_figure(x, None, np.arange(len(x)) % 3, (), path, seed=0)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(vectors), str(target)],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"it ended with {done.returncode}: {done.stderr}"
    assert target.stat().st_size > 1000


def test_what_has_collapsed_is_one_point():
    for kind in ("ones", "zeros", "constant", "nearly constant"):
        points = _map(VECTORS[kind], 0)
        np.testing.assert_array_equal(points, np.zeros((len(VECTORS[kind]), 2)))


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_the_size_of_vectors_does_not_matter(size):
    near, apart = NORMALS[:30] + 20, NORMALS[30:] - 20
    points = _map(np.concatenate([near, apart]) * size, 0)
    assert _gap(points) > 3


def _gap(points):
    """The distance of the two halves' middles, in the larger of their radii."""
    halves = points[:30], points[30:]
    middles = [half.mean(axis=0) for half in halves]
    radii = [
        np.linalg.norm(half - middle, axis=1).mean()
        for half, middle in zip(halves, middles, strict=True)
    ]
    return np.linalg.norm(middles[0] - middles[1]) / max(radii)
