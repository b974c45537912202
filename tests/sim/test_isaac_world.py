"""The mesh that PhysX collides with and the RayCaster hits consists of the scene's boxes and the ground only."""

from __future__ import annotations

import numpy as np

from navrl.sim.isaac_world import terrain_mesh, tile_origins
from navrl.sim.scene import generate_scene


def test_terrain_mesh_matches_the_scene() -> None:
    scene = generate_scene(2, 5, 60, 0)
    origins = tile_origins(5, 4.0)
    points, triangles = terrain_mesh(scene, origins)
    assert len(triangles) == 10 * len(scene.boxes) + 2 * 5 and triangles.max() == len(points) - 1
    gaps = np.abs(origins[:, None, :2] - origins[None, :, :2]).max(-1)
    assert gaps[~np.eye(5, dtype=bool)].min() >= 54.0, "no beam reaches from one map to the next"
    corners = points[triangles].astype(float)
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    middle = np.array([(b[0] + b[2]) / 2 for b in scene.boxes]), np.array([(b[1] + b[3]) / 2 for b in scene.boxes])
    owner = np.repeat(np.arange(5), np.diff(scene.box_offsets))
    centre = np.stack([middle[0], middle[1], scene.boxes[:, 4] / 2], 1) + origins[owner]
    outward = (normal[: 10 * len(centre)] * (corners.mean(1)[: 10 * len(centre)] - np.repeat(centre, 10, 0))).sum(1)
    assert (outward > 0).all() and (normal[-10:, 2] > 0).all()
