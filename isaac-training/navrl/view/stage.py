"""Draws a `World` into the scene of a viser page: the field, what moves in it, and what the drones see and want."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from navrl.monitor.flights import COLOURS
from navrl.sim.scene import CUBOID_HEIGHT, GROUND_HALF
from navrl.view.world import Crew, World

if TYPE_CHECKING:
    import viser

BEAMS = ("none", "followed drone", "all drones")
# ("goal" | "drone" | "obstacle", its number, how far it was pulled since it was grabbed; None: it was grabbed just now)
Grabbed = Callable[[str, int, np.ndarray | None], None]

OUTCOME_RGB = np.array([[int(c[k : k + 2], 16) for k in (1, 3, 5)] for c in COLOURS.values()], np.uint8)
SKY, GROUND, GRID = (214, 224, 234), (138, 147, 156), (108, 117, 127)  # darker than they look: the lights are bright
LOW_BOX, HIGH_BOX = np.array([150, 170, 188.0]), np.array([38, 60, 92.0])  # at 1 m and at 6 m
CREWS = {"crew": (0, 46, 150), "ghost": (110, 30, 170)}  # of the first and the second policy
FRAME, START = (28, 30, 34), (120, 120, 120)
MOVING, TOLD = (16, 148, 150), (255, 170, 0)
HIT, MISS = (225, 60, 50), (190, 202, 214)
COMMANDED, FLOWN, TRACK, GOAL = (235, 140, 0), (20, 150, 60), (255, 170, 0), (20, 150, 60)
TRAIL, RECENT = (90, 130, 170), 48  # points of a flight under way that are drawn: 6 s
HIDDEN = -100.0  # m: under the ground, where nobody looks


@dataclass
class Show:
    """What is drawn besides the world itself."""

    beams: str = BEAMS[1]
    tracks: bool = True
    velocities: bool = True
    trails: bool = True


class Stage:
    """The nodes of a scene that show a world. `build` for a new or changed world, `update` as it moves."""

    def __init__(self, scene: viser.SceneApi, grabbed: Grabbed) -> None:
        self.scene, self._grabbed = scene, grabbed
        self._nodes: dict[str, Any] = {}
        self._grips: dict[int, tuple[float, ...]] = {}  # per client: the point it has grabbed
        self._sent: dict[str, bytes] = {}  # what clients have, so that nothing is sent twice
        scene.set_up_direction("+z")
        scene.configure_default_lights(cast_shadow=False)
        scene.configure_fog(40.0, 110.0, color=SKY)
        scene.set_background_image(np.full((2, 2, 3), SKY, np.uint8))
        half = GROUND_HALF
        corners = np.array([[-half, -half, 0], [half, -half, 0], [half, half, 0], [-half, half, 0]], np.float32)
        faces = np.array([[0, 1, 2], [0, 2, 3]])
        scene.add_mesh_simple("/ground", corners, faces, color=GROUND, cast_shadow=False, side="double")
        across = np.array([[[x, -half, 0.02], [x, half, 0.02]] for x in np.arange(-half, half + 1, 5.0)], np.float32)
        grid = np.concatenate([across, across[:, :, [1, 0, 2]]])
        scene.add_line_segments("/grid", grid, GRID, thickness=0.03)

    # --- building -----------------------------------------------------------------------------------------------

    def build(self, world: World) -> None:
        """Draw what stays, and prepare what moves."""
        self._sent.clear()
        boxes = world.scene.boxes_of(0)
        centre = (boxes[:, 0:2] + boxes[:, 2:4]) / 2
        size = np.column_stack([boxes[:, 2:4] - boxes[:, 0:2], boxes[:, 4]])
        share = np.clip((boxes[:, 4:] - 1.0) / 5.0, 0.0, 1.0)
        shades = (LOW_BOX + share * (HIGH_BOX - LOW_BOX)).astype(np.uint8)
        self._batch("boxes", *box_mesh(), np.column_stack([centre, boxes[:, 4] / 2]), size, shades)

        sizes, count = world.scene.moving_size[0], int(world.scene.moving_count[0])
        self._floating = np.flatnonzero(sizes[:count, 1] <= CUBOID_HEIGHT)
        self._tall = np.flatnonzero(sizes[:count, 1] > CUBOID_HEIGHT)
        kinds = ("floating", box_mesh(), self._floating), ("tall", cylinder_mesh(), self._tall)
        for name, mesh, chosen in kinds:
            scale = sizes[chosen][:, [0, 0, 1]]
            if node := self._batch(name, *mesh, np.zeros((len(chosen), 3)), scale, painted(MOVING, len(chosen))):
                self._draggable(node, "obstacle", chosen)
        n = world.drones
        nowhere, everyone = np.zeros((n, 3)), np.arange(n)
        frame, rotors = quadrotor_meshes()
        for name, colour in CREWS.items():
            shown = nowhere if [*CREWS].index(name) < len(world.crews) else nowhere[:0]
            look = {"opacity": None if name == "crew" else 0.45}
            self._batch(f"{name}/frames", *frame, shown, None, painted(FRAME, len(shown)), **look)
            node = self._batch(
                f"{name}/rotors", *rotors, shown, None, painted(colour, len(shown)), side="double", **look
            )
            if name == "crew":
                self._draggable(node, "drone", everyone)
        node = self._batch("goals", *ball_mesh(0.35), nowhere, None, painted(GOAL, n), opacity=0.75)
        self._draggable(node, "goal", everyone)
        self._batch("starts", *cylinder_mesh(0.5, 0.04), nowhere, None, painted(START, n))

    def _batch(
        self, name: str, vertices: np.ndarray, faces: np.ndarray, places: np.ndarray, scales: np.ndarray | None,
        colours: np.ndarray, **look: Any,
    ) -> Any:  # fmt: skip
        """Many copies of one mesh; nothing if there are none."""
        self._remove(name)
        if len(places) == 0:
            return None
        upright = np.tile(np.array([1, 0, 0, 0], np.float32), (len(places), 1))
        scales = None if scales is None else scales.astype(np.float32)
        self._nodes[name] = self.scene.add_batched_meshes_simple(
            f"/{name}", vertices, faces, upright, places.astype(np.float32), batched_scales=scales,
            batched_colors=colours, flat_shading=True, lod="off", cast_shadow=False, **look,
        )  # fmt: skip
        return self._nodes[name]

    def _remove(self, name: str) -> None:
        if node := self._nodes.pop(name, None):
            node.remove()

    def _draggable(self, node: Any, kind: str, numbers: np.ndarray) -> None:
        """Whatever a person pulls is moved over the ground; with Shift, up and down."""

        async def over_ground(event: Any) -> None:
            if at := self._grip(event, kind, numbers):
                end = on_plane(event.client.camera.position, event.end_position, at[2])
                self._grabbed(kind, int(numbers[event.instance_index]), (end - at) * [1, 1, 0])

        async def upward(event: Any) -> None:
            if at := self._grip(event, kind, numbers):
                self._grabbed(kind, int(numbers[event.instance_index]), np.array([0, 0, event.end_position[2] - at[2]]))

        node.on_drag("left")(over_ground)
        node.on_drag("left", modifier="shift")(upward)

    def _grip(self, event: Any, kind: str, numbers: np.ndarray) -> tuple[float, ...] | None:
        """The point that was grabbed, while it is pulled. The event's own moves along with what is pulled."""
        if event.instance_index is None:
            return None
        if event.phase == "start":
            self._grips[event.client_id] = event.start_position
            self._grabbed(kind, int(numbers[event.instance_index]), None)
        return self._grips.pop(event.client_id, None) if event.phase == "end" else self._grips.get(event.client_id)

    # --- moving -------------------------------------------------------------------------------------------------

    def update(self, world: World, followed: int, show: Show) -> None:
        """Move everything to where it is now."""
        crew, sim = world.crews[0], world.sim
        moving = sim.moving_position[0].numpy().T  # (K, 3)
        told = crew.env.told_obstacles[followed].numpy()
        told = told[told >= 0] if show.tracks and crew.flying[followed] else told[:0]
        for name, chosen in (("floating", self._floating), ("tall", self._tall)):
            self._set(name, "batched_positions", moving[chosen])
            colours = np.where(np.isin(chosen, told)[:, None], painted(TOLD, 1), painted(MOVING, 1))
            self._set(name, "batched_colors", colours)
        for (name, colour), other in zip(CREWS.items(), world.crews, strict=False):
            self._drones(name, other, colour)
        flying = crew.flying.numpy()
        goals = crew.env.goal.numpy()
        self._set("goals", "batched_positions", np.where(flying[:, None], goals, [0, 0, HIDDEN]))
        starts = np.stack([points[0] if points else np.array([0, 0, HIDDEN]) for points in crew.points])
        self._set("starts", "batched_positions", starts * [1, 1, 0] + np.where(starts[:, 2:] > HIDDEN, 0.03, HIDDEN))
        drones = np.arange(world.drones) if show.beams == BEAMS[2] else np.array([followed])
        self._beams(crew, drones[flying[drones]] if show.beams != BEAMS[0] else drones[:0])
        here = sim.position.numpy()
        self._lines("tracks", [(here[followed], moving[k]) for k in told], TRACK, 0.015)
        arrows = np.flatnonzero(flying) if show.velocities else np.zeros(0, int)
        raised = here[arrows] + [0, 0, 0.15]
        self._lines("commanded", np.stack([raised, raised + crew.action.numpy()[arrows]], 1), COMMANDED, 0.025)
        self._lines("flown", np.stack([raised, raised + sim.velocity.numpy()[arrows]], 1), FLOWN, 0.025)
        self._trails(world, show.trails)

    def _drones(self, name: str, crew: Crew, colour: tuple[int, int, int]) -> None:
        sim = crew.env.simulator
        ended = crew.outcome >= 0
        colours = np.where(ended[:, None], OUTCOME_RGB[np.maximum(crew.outcome, 0)], painted(colour, 1))
        for part in ("frames", "rotors"):
            self._set(f"{name}/{part}", "batched_positions", sim.position.numpy())
            self._set(f"{name}/{part}", "batched_wxyzs", sim.quaternion.numpy())
        self._set(f"{name}/rotors", "batched_colors", colours)

    def _beams(self, crew: Crew, drones: np.ndarray) -> None:
        sim = crew.env.simulator
        spec = sim.settings.lidar
        ranges = sim.lidar.numpy()[drones]  # (d, azimuths, elevations)
        w, x, y, z = sim.quaternion.numpy()[drones].T
        yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        around = (yaw[:, None] + spec.azimuth_angles())[:, :, None]
        up = spec.elevation_angles()
        along = np.stack([np.cos(around) * np.cos(up), np.sin(around) * np.cos(up), np.sin(up) + 0 * around], -1)
        start = np.broadcast_to(sim.position.numpy()[drones][:, None, None], along.shape)
        ends = start + along * ranges[..., None]
        hit = (ranges < spec.range).reshape(-1)
        lines = np.stack([start, ends], axis=-2).reshape(-1, 2, 3)
        self._lines("beams/hit", lines[hit], HIT, 0.01)
        self._lines("beams/miss", lines[~hit], MISS, 0.005)

    def _trails(self, world: World, shown: bool) -> None:
        trails = [trail for crew in world.crews for trail in crew.ended] if shown else []
        number = sum(int(crew.counts.sum()) for crew in world.crews) if shown else -1
        if self._changed("trails/ended", str(number).encode()):
            lines = [joined(trail.points) for trail in trails]
            colours = [
                np.broadcast_to(OUTCOME_RGB[trail.outcome], line.shape)
                for trail, line in zip(trails, lines, strict=True)
            ]
            self._lines("trails/ended", _stack(lines), _stack(colours).astype(np.uint8), 0.05)
        under_way = [
            joined(np.array(points[-48:])) for crew in world.crews for points in crew.points if len(points) > 1
        ]
        self._lines("trails/now", _stack(under_way if shown else []), TRAIL, 0.04)

    # --- sending ------------------------------------------------------------------------------------------------

    def _lines(self, name: str, lines: np.ndarray | Sequence, colour: Any, thickness: float) -> None:
        """Line segments (k, 2, 3); hidden if there are none."""
        points = np.asarray(lines, np.float32).reshape(-1, 2, 3)
        if not self._changed(f"{name}.lines", points.tobytes()):
            return
        node = self._nodes.get(name)
        if len(points) == 0:
            if node:
                node.visible = False
        elif node is None:
            self._nodes[name] = self.scene.add_line_segments(f"/{name}", points, colour, thickness=thickness)
        else:
            if isinstance(colour, np.ndarray):
                node.colors = colour
            node.points = points
            node.visible = True

    def _set(self, name: str, prop: str, value: np.ndarray) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        value = value if value.dtype == np.uint8 else value.astype(np.float32)
        if self._changed(f"{name}.{prop}", value.tobytes()):
            setattr(node, prop, value)

    def _changed(self, name: str, content: bytes) -> bool:
        if self._sent.get(name) == content:
            return False
        self._sent[name] = content
        return True


def on_plane(eye: np.ndarray, through: Sequence[float], height: float) -> np.ndarray:
    """Where the line from an eye through a point meets the plane z = `height`; below the point if it hardly does."""
    way = np.asarray(through) - eye
    if abs(way[2]) < 0.05 * np.linalg.norm(way):
        return np.array([*through[:2], height])
    at = eye + way * min(max((height - eye[2]) / way[2], 0.0), 20.0)
    return np.array([*at[:2], height])


def painted(colour: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
    """One colour (count, 3) for all."""
    return np.tile(np.array(colour, np.uint8), (count, 1))


def joined(points: np.ndarray) -> np.ndarray:
    """Segments (k - 1, 2, 3) of a line through k points."""
    return np.stack([points[:-1], points[1:]], axis=1)


def _stack(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros((0, 2, 3), np.float32)


# --- meshes: vertices (V, 3) and faces (F, 3), of unit size around the origin ---------------------------------------

Mesh = tuple[np.ndarray, np.ndarray]


def box_mesh(size: Sequence[float] = (1, 1, 1), centre: Sequence[float] = (0, 0, 0)) -> Mesh:
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) / 2
    sides = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = [triangle for a, b, c, d in sides for triangle in ((a, b, c), (a, c, d))]
    return (corners * size + centre).astype(np.float32), np.array(faces)


def cylinder_mesh(diameter: float = 1.0, height: float = 1.0, centre: Sequence[float] = (0, 0, 0), n: int = 20) -> Mesh:
    angle = np.arange(n) * 2 * np.pi / n
    ring = np.column_stack([np.cos(angle), np.sin(angle)]) * diameter / 2
    low, high = np.column_stack([ring, np.full(n, -height / 2)]), np.column_stack([ring, np.full(n, height / 2)])
    ends = np.array([[0, 0, -height / 2], [0, 0, height / 2]])
    a, b = np.arange(n), (np.arange(n) + 1) % n
    sides = np.concatenate([np.column_stack([a, b, b + n]), np.column_stack([a, b + n, a + n])])
    caps = np.concatenate([np.column_stack([b, a, 0 * a + 2 * n]), np.column_stack([a + n, b + n, 0 * a + 2 * n + 1])])
    return (np.concatenate([low, high, ends]) + centre).astype(np.float32), np.concatenate([sides, caps])


def ball_mesh(radius: float, n: int = 12) -> Mesh:
    up, around = np.linspace(-np.pi / 2, np.pi / 2, n), np.arange(2 * n) * np.pi / n
    flat, high = np.cos(up)[:, None], np.sin(up)[:, None]
    grid = np.stack(np.broadcast_arrays(flat * np.cos(around), flat * np.sin(around), high), -1)
    i, j = np.meshgrid(np.arange(n - 1), np.arange(2 * n), indexing="ij")
    a, b = i * 2 * n + j, i * 2 * n + (j + 1) % (2 * n)
    faces = np.stack([np.stack([a, b, b + 2 * n], -1), np.stack([a, b + 2 * n, a + 2 * n], -1)]).reshape(-1, 3)
    return (radius * grid.reshape(-1, 3)).astype(np.float32), faces


def quadrotor_meshes(arm: float = 0.17, rotor: float = 0.22) -> tuple[Mesh, Mesh]:
    """Frame and rotors, in metres; the front rotor's arm is thicker, so that one sees where it points."""
    frame = [box_mesh((0.12, 0.12, 0.07)), box_mesh((2 * arm, 0.025, 0.02)), box_mesh((0.025, 2 * arm, 0.02))]
    frame.append(box_mesh((arm, 0.05, 0.03), (arm / 2, 0, 0)))
    places = [(arm, 0, 0.04), (-arm, 0, 0.04), (0, arm, 0.04), (0, -arm, 0.04)]
    return _merge(frame), _merge([cylinder_mesh(rotor, 0.012, place, 16) for place in places])


def _merge(meshes: Sequence[Mesh]) -> Mesh:
    offsets = np.cumsum([0] + [len(vertices) for vertices, _ in meshes])
    faces = [faces + offset for (_, faces), offset in zip(meshes, offsets, strict=False)]
    return np.concatenate([vertices for vertices, _ in meshes]), np.concatenate(faces)
