"""The scene as USD: every map a tile of one large world, boxes as one mesh, moving obstacles as kinematic bodies.

Does not need Isaac Lab, and imports USD (`pxr`) only when adding to a stage: Isaac Sim must load its own.
"""

from __future__ import annotations

import numpy as np

from navrl.sim.scene import CUBOID_HEIGHT, GROUND_HALF, Scene

TERRAIN, OBSTACLES = "/World/terrain", "/World/obstacles"


def tile_origins(maps: int, lidar_range: float) -> np.ndarray:
    """Return the world position of every map centre, (M, 3), far enough apart that no beam reaches a neighbour."""
    side = int(np.ceil(np.sqrt(maps)))
    pitch = np.ceil(2 * GROUND_HALF + lidar_range + 1.0)
    column, row = np.arange(maps) % side, np.arange(maps) // side
    return np.stack([column, row, np.zeros(maps)], axis=1) * pitch - np.array([1, 1, 0]) * (side - 1) * pitch // 2


def terrain_mesh(scene: Scene, origins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points and triangles of all boxes (without bottom faces) and of one ground square per map."""
    owner = np.repeat(np.arange(scene.num_maps), np.diff(scene.box_offsets))
    x0, y0, x1, y1, top = scene.boxes.astype(float).T
    x, y = np.stack([x0, x1, x1, x0], 1), np.stack([y0, y0, y1, y1], 1)  # (B, 4)
    corners = np.stack([np.tile(x, 2), np.tile(y, 2), np.repeat([np.zeros_like(top), top], 4, 0).T], -1)  # (B, 8, 3)
    corners += origins[owner][:, None]
    sides = [[k, (k + 1) % 4, (k + 1) % 4 + 4, k, (k + 1) % 4 + 4, k + 4] for k in range(4)]
    faces = np.array([*sides, [4, 5, 6, 4, 6, 7]]).reshape(-1, 3)
    g = GROUND_HALF
    ground = np.array([[-g, -g, 0], [g, -g, 0], [g, g, 0], [-g, g, 0]]) + origins[:, None]  # (M, 4, 3)
    points = np.concatenate([corners.reshape(-1, 3), ground.reshape(-1, 3)])
    boxes = faces + 8 * np.arange(len(corners))[:, None, None]
    squares = np.array([[0, 1, 2], [0, 2, 3]]) + 8 * len(corners) + 4 * np.arange(len(origins))[:, None, None]
    return points.astype(np.float32), np.concatenate([boxes.reshape(-1, 3), squares.reshape(-1, 3)]).astype(np.int32)


def add_terrain(stage: object, scene: Scene, origins: np.ndarray) -> None:
    """Add one mesh for PhysX to collide with and the RayCaster to hit."""
    from pxr import UsdGeom, UsdPhysics, Vt  # pyright: ignore[reportMissingImports]

    points, triangles = terrain_mesh(scene, origins)
    UsdGeom.Xform.Define(stage, TERRAIN)
    mesh = UsdGeom.Mesh.Define(stage, f"{TERRAIN}/mesh")
    mesh.CreatePointsAttr(Vt.Vec3fArray.FromNumpy(points))
    mesh.CreateFaceVertexIndicesAttr(Vt.IntArray.FromNumpy(triangles.ravel()))
    mesh.CreateFaceVertexCountsAttr(Vt.IntArray.FromNumpy(np.full(len(triangles), 3, np.int32)))
    UsdPhysics.CollisionAPI.Apply(mesh.GetPrim())
    UsdPhysics.MeshCollisionAPI.Apply(mesh.GetPrim()).CreateApproximationAttr("none")  # the triangles themselves


def add_obstacles(stage: object, scene: Scene, origins: np.ndarray) -> int:
    """Add kinematic bodies, map by map; return their number. As in NavRL they do not collide: contacts are computed.

    Uses the low-level Sdf interface: the Usd one would take minutes for twenty thousand bodies.
    """
    from pxr import Gf, Sdf, UsdGeom  # pyright: ignore[reportMissingImports]

    UsdGeom.Xform.Define(stage, OBSTACLES)
    layer, types, number = stage.GetRootLayer(), Sdf.ValueTypeNames, 0  # pyright: ignore[reportAttributeAccessIssue]
    schemas = Sdf.TokenListOp.Create(prependedItems=["PhysicsRigidBodyAPI"])
    with Sdf.ChangeBlock():
        for m, count in enumerate(scene.moving_count):
            for place, (width, height) in zip(scene.moving_origin[m], scene.moving_size[m][:count], strict=False):
                prim = Sdf.CreatePrimInLayer(layer, f"{OBSTACLES}/obstacle_{number:06d}")
                number += 1
                cuboid = height <= CUBOID_HEIGHT
                prim.specifier, prim.typeName = Sdf.SpecifierDef, "Cube" if cuboid else "Cylinder"
                prim.SetInfo("apiSchemas", schemas)
                across, up = float(width), float(height)
                scale = Gf.Vec3d(across, across, up) if cuboid else Gf.Vec3d(1, 1, 1)
                form = {"size": 1.0} if cuboid else {"radius": across / 2, "height": up}
                attributes = {
                    "physics:kinematicEnabled": (types.Bool, True),
                    "xformOp:translate": (types.Double3, Gf.Vec3d(*(place + origins[m]).tolist())),
                    "xformOp:orient": (types.Quatd, Gf.Quatd(1, 0, 0, 0)),
                    "xformOp:scale": (types.Double3, scale),
                    "xformOpOrder": (types.TokenArray, ["xformOp:translate", "xformOp:orient", "xformOp:scale"]),
                    **{name: (types.Double, value) for name, value in form.items()},
                }
                for name, (kind, value) in attributes.items():
                    uniform = name == "xformOpOrder"
                    how = Sdf.VariabilityUniform if uniform else Sdf.VariabilityVarying
                    Sdf.AttributeSpec(prim, name, kind, how).default = value
    return number
