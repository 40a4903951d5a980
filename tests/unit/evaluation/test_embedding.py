"""t-SNE of vectors that are all but equal or of extreme size, which scikit-learn's dies of."""

import os
import subprocess
import sys

import numpy as np
import pytest

from coterie.evaluation.embedding import tsne_points

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


DRAWS = """
import sys, pathlib, numpy as np
from coterie.evaluation.embedding import embedding_figure
for path in map(pathlib.Path, sys.argv[1:]):
    x = np.load(path)
    embedding_figure(x, None, np.arange(len(x)) % 3, (), path.with_suffix(".png"), seed=0)
"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """How drawing all of them in a process of its own ended, and where the figures are.

    It may crash without taking the tests along.
    """
    folder = tmp_path_factory.mktemp("vectors")
    files = [folder / f"{kind}.npy" for kind in VECTORS]
    for path in files:
        np.save(path, VECTORS[path.stem])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", DRAWS, *files],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done, folder


@pytest.mark.parametrize("kind", VECTORS)
def test_collapsed_and_extreme_vectors_are_drawn(drawn, kind):
    done, folder = drawn
    assert (folder / f"{kind}.png").stat().st_size > 1000, done.stderr
    assert done.returncode == 0, f"it ended with {done.returncode}: {done.stderr}"


def test_what_has_collapsed_is_one_point():
    for kind in ("ones", "zeros", "constant", "nearly constant"):
        points = tsne_points(VECTORS[kind], 0)
        np.testing.assert_array_equal(points, np.zeros((len(VECTORS[kind]), 2)))


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_the_size_of_vectors_does_not_matter(size):
    near, apart = NORMALS[:30] + 20, NORMALS[30:] - 20
    points = tsne_points(np.concatenate([near, apart]) * size, 0)
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
