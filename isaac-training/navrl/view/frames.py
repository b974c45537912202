"""Draws flights as pictures without a screen: a chase view beside a map, and the state of the flight as text.

Pillow draws everything twice as large, and scaling it down smooths the edges. Solids are painted from back to front, so
that no depth buffer is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from navrl.monitor.console import SHORT
from navrl.monitor.flights import COLOURS
from navrl.schema import OUTCOMES, SUCCESS, TIMEOUT
from navrl.settings import one_line
from navrl.sim.scene import CUBOID_HEIGHT, Scene
from navrl.task.evaluation import Flights
from navrl.view.playback import Moment, Playback

Colour = tuple[int, ...]  # red, green, blue, and opacity where something shines through

FINE = 2  # drawn so many times larger
NEAR, FAR = 0.3, 40.0  # m from the camera: what is drawn
HAZE = 21.0  # m: at this distance two thirds of a colour are lost in the haze
FIELD_OF_VIEW = math.radians(62.0)  # across the chase view
PITCH = math.radians(20.0)  # of the camera, down
TRAIL_SECONDS = 5.0  # of the trail in the chase view
ARROW = 0.55  # m per m/s
SUN = np.array([0.34, 0.2])  # m of shadow per m of height
LIGHT = ((0.92, 0.62), (0.78, 0.70), (0.45, 1.08))  # on the low and the high face of a box along each axis
SIDES = 12  # of a cylinder
GLASS = 0.22  # opacity of what stands between camera and drone

SKY, HORIZON, GROUND = (112, 158, 204), (228, 235, 240), (206, 209, 210)
LINE, SHADOW, PAPER = (172, 177, 181), (168, 173, 178), (236, 239, 241)
PANEL, INK, FAINT, DARK = (22, 27, 34), (240, 243, 246), (139, 148, 158), (28, 32, 40)
LOW_BOX, HIGH_BOX = np.array([178.0, 192.0, 204.0]), np.array([52.0, 78.0, 110.0])  # at 1 m and at 6 m
MOVING, TOLD = (16, 148, 150), (255, 170, 0)
COMMANDED, FLOWN = (226, 0, 116), (0, 122, 255)
HIT, MISS, GOAL = (225, 70, 60), (90, 120, 160), (20, 150, 60)


def rgb(colour: str) -> tuple[int, int, int]:
    """`#rrggbb` as numbers."""
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


def height_colours(heights: np.ndarray) -> np.ndarray:
    """Colours (n, 3) of static boxes by their height in m."""
    part = np.clip((heights - 1.0) / 5.0, 0.0, 1.0)[:, None]
    return (1 - part) * LOW_BOX + part * HIGH_BOX


def haze(colours: np.ndarray | Colour, distance: np.ndarray) -> np.ndarray:
    """Colours (…, 3) as seen from a distance (…), in m."""
    left = np.exp(-((distance / HAZE) ** 2))[..., None]
    return colours * left + np.array(HORIZON) * (1 - left)


@lru_cache(maxsize=32)
def font(size: float, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib and knows many scripts."""
    import matplotlib

    name = f"fonts/ttf/DejaVuSans{'-Bold' if bold else ''}.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / name), max(4.0, size))


@cache
def ring(count: int) -> np.ndarray:
    """Points (count, 3) on the unit circle."""
    angle = np.arange(count) * (2 * np.pi / count)
    return np.stack([np.cos(angle), np.sin(angle), np.zeros(count)], axis=1)


# --- projection -----------------------------------------------------------------------------------------------------


class Camera:
    """Projects points of the world onto a picture of `width` × `height` pixels."""

    def __init__(self, eye: np.ndarray, heading: float, width: int, height: int) -> None:
        self.eye, self.width, self.height = eye, width, height
        self.focal = width / 2 / math.tan(FIELD_OF_VIEW / 2)  # pixels
        self.horizon = height / 2 - self.focal * math.tan(PITCH)  # the row where ground and sky meet
        east, north = math.cos(heading), math.sin(heading)
        forward = np.array([east * math.cos(PITCH), north * math.cos(PITCH), -math.sin(PITCH)])
        right = np.array([north, -east, 0.0])
        self.axes = np.stack([right, np.cross(right, forward), forward], axis=1)  # (3, 3)

    def look(self, points: np.ndarray) -> np.ndarray:
        """Points (…, 3) as seen: right, up and away from the camera, in m."""
        return (points - self.eye) @ self.axes

    def screen(self, seen: np.ndarray) -> np.ndarray:
        """Pixels (…, 2) of points as seen, which must be in front of the camera."""
        scale = self.focal / np.maximum(seen[..., 2:], 1e-6)
        return seen[..., :2] * scale * [1.0, -1.0] + [self.width / 2, self.height / 2]

    def polygons(self, polygons: np.ndarray) -> list[list[float] | None]:
        """Pixels x y x y … of polygons (n, k, 3), each cut off at the near plane; None if it cannot be seen."""
        seen = self.look(polygons)
        pixels = self.screen(seen)
        nearest, furthest = seen[..., 2].min(1), seen[..., 2].max(1)
        low, high = pixels.min(1), pixels.max(1)
        hidden = (high < 0).any(1) | (low[:, 0] > self.width) | (low[:, 1] > self.height)
        hidden = (hidden & (nearest >= NEAR)) | (furthest < NEAR)
        out: list[Any] = pixels.reshape(len(pixels), 2 * polygons.shape[1]).tolist()
        for i in np.flatnonzero(hidden):
            out[i] = None
        for i in np.flatnonzero(~hidden & (nearest < NEAR)):
            out[i] = self.screen(cut_near(seen[i])).ravel().tolist()
        return out

    def segments(self, segments: np.ndarray) -> list[list[float] | None]:
        """Pixels of straight lines (n, 2, 3), each cut off at the near plane; None if it cannot be seen."""
        seen = self.look(segments)
        depth = seen[..., 2]
        hidden = depth.max(1) < NEAR
        over = np.maximum(NEAR - depth, 0.0) / np.maximum(np.abs(depth[:, :1] - depth[:, 1:]), 1e-9)  # (n, 2)
        seen = seen + np.minimum(over, 1.0)[..., None] * (seen[:, ::-1] - seen)
        pixels = self.screen(seen).reshape(len(seen), 4).tolist()
        return [None if h else line for h, line in zip(hidden, pixels, strict=True)]


def cut_near(seen: np.ndarray) -> np.ndarray:
    """The part of a polygon (k, 3), as seen, that is beyond the near plane."""
    out = []
    for a, b in zip(seen, np.roll(seen, -1, axis=0), strict=True):
        if a[2] >= NEAR:
            out.append(a)
        if (a[2] >= NEAR) != (b[2] >= NEAR):
            out.append(a + (b - a) * (NEAR - a[2]) / (b[2] - a[2]))
    return np.array(out)


def back_to_front(low: np.ndarray, high: np.ndarray, eye: np.ndarray) -> list[int]:
    """An order of boxes, given by corners (n, 3), in which none is painted before another that it hides.

    Of two boxes with a plane between them, the one beyond the plane hides nothing of the other. Boxes that overlap are
    ordered by distance.
    """
    count = len(low)
    hides = ~np.eye(count, dtype=bool)  # [i, j]: i may hide j
    for a, b, here in zip(low.T, high.T, eye, strict=True):
        apart = b[:, None] <= a[None, :] + 1e-6  # i ends below j on this axis
        hides &= ~(apart & (here > b)[:, None])
        hides &= ~(apart & (here < a)[None, :]).T
    distance = np.linalg.norm((low + high) / 2 - eye, axis=1)
    hides &= ~(hides.T & (distance[:, None] > distance[None, :]))
    waiting = hides.sum(axis=1)  # for so many that must be painted first
    left = np.ones(count, bool)
    order: list[int] = []
    while len(order) < count:
        free = np.flatnonzero(left & (waiting == 0))
        if not len(free):  # they hide each other in a ring
            free = np.array([np.where(left, distance, -1.0).argmax()])
        order += free.tolist()
        left[free] = False
        waiting -= hides[:, free].sum(axis=1)
    return order


# --- solids ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Solids:
    """Boxes and upright cylinders."""

    low: np.ndarray  # (n, 3) m, corners around them
    high: np.ndarray  # (n, 3) m
    round: np.ndarray  # (n,) bool: a cylinder
    colours: np.ndarray  # (n, 3)

    def __getitem__(self, which: np.ndarray) -> Solids:
        return Solids(self.low[which], self.high[which], self.round[which], self.colours[which])

    @property
    def centre(self) -> np.ndarray:
        return (self.low + self.high) / 2

    def join(self, other: Solids) -> Solids:
        return Solids(
            np.concatenate([self.low, other.low]),
            np.concatenate([self.high, other.high]),
            np.concatenate([self.round, other.round]),
            np.concatenate([self.colours, other.colours]),
        )


Faces = tuple[
    np.ndarray, np.ndarray, np.ndarray
]  # polygons (f, k, 3) in m, the solid of each (f,), its brightness (f,)


def box_faces(solids: Solids, eye: np.ndarray) -> Faces:
    """The faces of boxes that the camera can see."""
    polygons, owner, light = [], [], []
    boxes = np.flatnonzero(~solids.round)
    for axis, sides in enumerate(LIGHT):
        for side, corner, sign in zip(sides, (solids.low, solids.high), (-1.0, 1.0), strict=True):
            which = boxes[sign * (eye[axis] - corner[boxes, axis]) > 0]
            faces = np.stack([solids.low, solids.high])[np.array([0, 1, 1, 0])][:, which]  # (4, f, 3)
            faces[:, :, axis] = corner[which, axis]
            second = (axis + 2) % 3
            faces[:, :, second] = np.stack([solids.low, solids.high])[np.array([0, 0, 1, 1])][:, which, second]
            polygons.append(faces.swapaxes(0, 1))
            owner.append(which)
            light.append(np.full(len(which), side))
    return np.concatenate(polygons), np.concatenate(owner), np.concatenate(light)


def cylinder_sides(solids: Solids, eye: np.ndarray) -> Faces:
    """The sides of cylinders that the camera can see."""
    which = np.flatnonzero(solids.round)
    low, high = solids.low[which], solids.high[which]
    centre, radius = (low + high) / 2, (high - low)[:, 0] / 2
    around = centre[:, None] + radius[:, None, None] * ring(SIDES)  # (c, SIDES, 3)
    bottom, top = around.copy(), around
    bottom[..., 2], top[..., 2] = low[:, None, 2], high[:, None, 2]
    ends = np.roll(bottom, -1, axis=1), np.roll(top, -1, axis=1)
    polygons = np.stack([bottom, ends[0], ends[1], top], axis=2)  # (c, SIDES, 4, 3)
    outward = (ring(SIDES) + np.roll(ring(SIDES), -1, axis=0))[:, :2]
    outward /= np.linalg.norm(outward, axis=1, keepdims=True)
    seen = (eye[:2] - centre[:, :2]) @ outward.T > radius[:, None] * math.cos(math.pi / SIDES)  # (c, SIDES)
    light = 0.8 - 0.2 * outward @ (SUN / np.linalg.norm(SUN))
    cylinder, side = np.nonzero(seen)
    return polygons[cylinder, side], which[cylinder], light[side]


def cylinder_tops(solids: Solids, eye: np.ndarray) -> Faces:
    """The tops of cylinders that the camera can see."""
    which = np.flatnonzero(solids.round & (eye[2] > solids.high[:, 2]))
    radius = (solids.high - solids.low)[which, 0] / 2
    tops = solids.centre[which][:, None] + radius[:, None, None] * ring(SIDES)
    tops[..., 2] = solids.high[which, None, 2]
    return tops, which, np.full(len(which), LIGHT[2][1])


def shadows(solids: Solids) -> np.ndarray:
    """What solids darken of the ground, as polygons (n, 6, 3)."""
    (x0, y0, z0), (x1, y1, z1) = solids.low.T, solids.high.T
    a, b = SUN[:, None] * np.maximum(z0, 0.0), SUN[:, None] * z1  # how far bottom and top throw their shadows
    x = np.stack([x0 + a[0], x1 + a[0], x1 + b[0], x1 + b[0], x0 + b[0], x0 + a[0]], axis=1)
    y = np.stack([y0 + a[1], y0 + a[1], y0 + b[1], y1 + b[1], y1 + b[1], y1 + a[1]], axis=1)
    return np.stack([x, y, np.zeros_like(x)], axis=2)


# --- drawing --------------------------------------------------------------------------------------------------------


class Canvas:
    """A picture of the world through a camera. Lengths are in m."""

    def __init__(self, image: Image.Image, camera: Camera) -> None:
        self.image, self.camera = image, camera
        self.solid, self.glass = ImageDraw.Draw(image), ImageDraw.Draw(image, "RGBA")

    def pen(self, colour: Colour) -> ImageDraw.ImageDraw:
        return self.solid if len(colour) == 3 else self.glass

    def polygons(self, polygons: np.ndarray, colours: Iterable[Colour]) -> None:
        """Fill polygons (n, k, 3)."""
        for pixels, colour in zip(self.camera.polygons(polygons), colours, strict=True):
            if pixels:
                self.pen(colour).polygon(pixels, colour)

    def lines(self, segments: np.ndarray, colours: Iterable[Colour], width: int) -> None:
        """Draw straight lines (n, 2, 3), `width` in pixels."""
        for pixels, colour in zip(self.camera.segments(segments), colours, strict=True):
            if pixels:
                self.pen(colour).line(pixels, colour, width)

    def dots(self, points: np.ndarray, radius: float, colour: Colour) -> None:
        """Draw balls around points (n, 3)."""
        seen = self.camera.look(points)
        seen = seen[seen[:, 2] > NEAR]
        for (x, y), depth in zip(self.camera.screen(seen).tolist(), seen[:, 2].tolist(), strict=True):
            r = radius * self.camera.focal / depth
            self.pen(colour).ellipse((x - r, y - r, x + r, y + r), colour)

    def disc(self, centre: np.ndarray, radius: float, colour: Colour, axes: np.ndarray | None = None) -> None:
        """Fill a disc that lies flat, or in the plane of the first two columns of `axes`."""
        points = radius * ring(20) if axes is None else radius * ring(20) @ axes.T
        self.polygons((centre + points)[None], [colour])

    def pixels_per_metre(self, place: np.ndarray) -> float:
        return self.camera.focal / max(float(self.camera.look(place)[2]), NEAR)


def arrow(draw: ImageDraw.ImageDraw, start: np.ndarray, tip: np.ndarray, colour: Colour, width: float) -> None:
    """An arrow between two points, with a light edge; all in pixels."""
    length = float(np.linalg.norm(tip - start))
    if length < 2 * width:
        return
    along = (tip - start) / length
    across = np.array([-along[1], along[0]])
    head = min(3.4 * width, 0.6 * length)
    neck = tip - head * along
    sides = [(start, 0.5), (neck, 0.5), (neck, 1.9), (tip, 0.0), (neck, -1.9), (neck, -0.5), (start, -0.5)]
    outline = np.stack([point + size * width * across for point, size in sides]).ravel().tolist()
    draw.polygon(outline, colour, (255, 255, 255), max(1, round(width / 4)))


def mark_end(draw: ImageDraw.ImageDraw, place: np.ndarray, size: float, outcome: str) -> None:
    """Show how a flight ended, around a point in pixels: a ring if nothing broke, else a burst."""
    colour, width = rgb(COLOURS[outcome]), max(2, round(size / 14))
    if OUTCOMES.index(outcome) + 1 in (SUCCESS, TIMEOUT):
        draw.ellipse([*(place - size), *(place + size)], None, colour, width)
        return
    spikes = ring(24)[:, :2] * np.where(np.arange(24) % 2, 0.7, 1.0)[:, None]
    draw.polygon((place + size * spikes).ravel().tolist(), (*colour, 50), colour, width)


class ChaseView:
    """The world from behind and above the drone. What stands between camera and drone is drawn as if of glass."""

    def __init__(self, scene: Scene, playback: Playback, width: int, height: int) -> None:
        self.playback, self.width, self.height = playback, width * FINE, height * FINE
        self.unit = self.height / 720  # pixels
        boxes = scene.boxes_of(playback.map_index).astype(float)
        low, high = np.column_stack([boxes[:, :2], np.zeros(len(boxes))]), boxes[:, 2:5]
        self.boxes = Solids(low, high, np.zeros(len(boxes), bool), height_colours(high[:, 2]))
        self.grid = self._grid(scene.border)
        self.backdrop = self._backdrop(float(playback.eye[:, 2].mean()))

    def _grid(self, half: float) -> np.ndarray:
        """Lines of the ground (n, 2, 3), in pieces that are hazy each in its own way."""
        ends = np.arange(-half, half, 4.0)
        along = np.stack(np.broadcast_arrays(np.arange(-half, half + 1, 2.0)[:, None], ends), axis=2).reshape(-1, 2)
        start = np.column_stack([along, np.zeros(len(along))])
        lines = np.stack([start, start + [0.0, 4.0, 0.0]], axis=1)
        return np.concatenate([lines, lines[..., [1, 0, 2]]])

    def _backdrop(self, eye_height: float) -> Image.Image:
        """Sky and ground: the same in every frame, because the camera never tilts."""
        camera = Camera(np.array([0.0, 0.0, eye_height]), 0.0, self.width, self.height)
        rows = np.arange(self.height) + 0.5
        up = np.clip((camera.horizon - rows) / self.height * 2.2, 0.0, 1.0)[:, None]
        sky = (1 - up) * np.array(HORIZON) + up * np.array(SKY)
        angle = np.arctan((rows - self.height / 2) / camera.focal) + PITCH  # below the horizon
        ground = haze(np.array(GROUND), eye_height / np.sin(np.maximum(angle, 1e-3)))
        column = np.where(rows[:, None] < camera.horizon, sky, ground).round().astype(np.uint8)[:, None]
        return Image.fromarray(column).resize((self.width, self.height))

    def draw(self, moment: Moment, ended: bool) -> Image.Image:
        """The view at a moment, in its final size."""
        camera = Camera(moment.eye, moment.heading, self.width, self.height)
        canvas = Canvas(self.backdrop.copy(), camera)
        half = self.playback.size[:, [0, 0, 1]] / 2
        colours = np.where(moment.told[:, None], np.array(TOLD, float), MOVING)
        moving = Solids(moment.moving - half, moment.moving + half, half[:, 2] * 2 > CUBOID_HEIGHT, colours)
        solids = self.boxes.join(moving)
        self._ground(canvas, solids)
        self._world(canvas, self._in_view(camera, solids), moment)
        self._marks(canvas, moment, ended)
        return canvas.image.reduce(FINE)

    def _in_view(self, camera: Camera, solids: Solids) -> Solids:
        seen, size = camera.look(solids.centre), np.linalg.norm(solids.high - solids.low, axis=1) / 2
        wide = math.tan(FIELD_OF_VIEW / 2) * np.maximum(seen[:, 2], 0.0) + 1.2 * size
        return solids[(seen[:, 2] > -size) & (seen[:, 2] < FAR) & (np.abs(seen[:, 0]) < wide)]

    def _ground(self, canvas: Canvas, solids: Solids) -> None:
        """Grid, shadows, start and goal."""
        seen = canvas.camera.look(self.grid).mean(axis=1)
        near = (seen[:, 2] > -2.0) & (seen[:, 2] < FAR) & (np.abs(seen[:, 0]) < np.maximum(seen[:, 2], 0.0) + 3.0)
        colours = haze(np.array(LINE), np.linalg.norm(seen[near], axis=1)).astype(int).tolist()
        canvas.lines(self.grid[near], map(tuple, colours), FINE)
        polygons = shadows(solids)
        distance = np.linalg.norm(polygons.mean(axis=1) - canvas.camera.eye, axis=1)
        order = np.argsort(-distance)
        order = order[distance[order] < FAR]
        canvas.polygons(polygons[order], map(tuple, haze(np.array(SHADOW), distance[order]).astype(int).tolist()))
        for place, colour in ((self.playback.start, FLOWN), (self.playback.goal, GOAL)):
            for radius in (0.5, 0.25):
                canvas.disc(np.array([*place[:2], 0.0]), radius, (*colour, 120))

    def _world(self, canvas: Canvas, solids: Solids, moment: Moment) -> None:
        """Solids, trail, goal, and the drone with its beams, from back to front."""
        recent = moment.trail[-round(TRAIL_SECONDS / self.playback.recording.seconds) :]
        points = recent[::-2][::-1]  # every second, the last one included
        trail = np.stack([points[:-1], points[1:]], axis=1)  # (s, 2, 3)
        pole = np.array([[*self.playback.goal[:2], 0.0], self.playback.goal])
        drone = moment.position + np.array([[-0.35], [0.35]]) * [1.0, 1.0, 0.4]
        lines = np.concatenate([trail, pole[None], drone[None]])
        low = np.concatenate([solids.low, lines.min(axis=1) - 0.02])
        high = np.concatenate([solids.high, lines.max(axis=1) + 0.02])
        faces = self._paint(canvas, solids, moment)
        for item in back_to_front(low, high, moment.eye):
            number = item - len(solids.low)
            if number < 0:
                for pixels, colour in faces[item]:
                    canvas.pen(colour).polygon(pixels, colour)
            elif number < len(trail):
                thick = 0.06 * (number + 1) / len(trail) * canvas.pixels_per_metre(trail[number, 1])
                colour = rgb(COLOURS[self.playback.outcome])
                canvas.lines(trail[number : number + 1], [colour], max(FINE, round(thick)))
            elif number == len(trail):
                self._goal(canvas, pole)
            else:
                self._drone(canvas, moment)

    def _paint(self, canvas: Canvas, solids: Solids, moment: Moment) -> list[list[tuple[list[float], tuple[int, ...]]]]:
        """Of each solid the faces that can be seen: pixels and colour."""
        out: list[list[tuple[list[float], Colour]]] = [[] for _ in solids.low]
        distance = np.linalg.norm(solids.centre - moment.eye, axis=1)
        opacity = self._opacity(solids, moment)
        for kind in (box_faces, cylinder_sides, cylinder_tops):
            polygons, owner, light = kind(solids, moment.eye)
            shades = np.minimum(solids.colours[owner] * light[:, None], 255.0)
            colours = np.column_stack([haze(shades, distance[owner]), 255 * opacity[owner]]).astype(int).tolist()
            for pixels, solid, colour in zip(canvas.camera.polygons(polygons), owner, colours, strict=True):
                if pixels:
                    out[solid].append((pixels, tuple(colour[:3] if colour[3] == 255 else colour)))
        return out

    def _opacity(self, solids: Solids, moment: Moment) -> np.ndarray:
        """1 for most solids (n,), less for those close to the line from the camera to the drone."""
        way = np.linspace(0.0, 0.86, 12)[:, None, None]
        points = (1 - way) * moment.eye + way * moment.position  # (12, 1, 3)
        gap = np.maximum(np.maximum(solids.low - points, points - solids.high), 0.0)  # (12, n, 3)
        return np.clip((np.linalg.norm(gap, axis=2).min(axis=0) - 0.2) / 0.6, GLASS, 1.0)

    def _goal(self, canvas: Canvas, pole: np.ndarray) -> None:
        canvas.lines(pole[None], [GOAL], round(3 * self.unit))
        for radius, opacity in ((0.5, 80), (0.14, 255)):
            canvas.disc(pole[1], radius, (*GOAL, opacity), canvas.camera.axes)

    def _drone(self, canvas: Canvas, moment: Moment) -> None:
        """The drone with its attitude, its beams, and its place on the ground."""
        place, rotation = moment.position, moment.rotation
        below = self._below(place)
        canvas.disc(below, 0.2, (*DARK, 90))
        canvas.lines(np.stack([below, place])[None], [(*DARK, 60)], FINE)
        for ends, colour in ((moment.misses, (*MISS, 18)), (moment.hits, (*HIT, 100))):
            beams = np.stack([np.broadcast_to(place, ends.shape), ends], axis=1)
            canvas.lines(beams, [colour] * len(beams), FINE)
        canvas.dots(moment.hits, 0.028, HIT)
        hubs = 0.2 * np.array([[1, 1, 0], [-1, 1, 0], [-1, -1, 0], [1, -1, 0]])
        rotors = place + hubs @ rotation.T
        arms = np.stack([np.broadcast_to(place, rotors.shape), rotors], axis=1)
        canvas.lines(arms, [DARK] * 4, max(1, round(0.04 * canvas.pixels_per_metre(place))))
        hull = np.array([[0.17, 0.0], [0.07, 0.09], [-0.13, 0.09], [-0.13, -0.09], [0.07, -0.09]])
        for height, colour in ((-0.035, DARK), (0.035, INK)):
            canvas.polygons((place + np.column_stack([hull, np.full(5, height)]) @ rotation.T)[None], [colour])
        for k in np.argsort(-canvas.camera.look(rotors)[:, 2]):
            colour = HIT if hubs[k, 0] > 0 else INK  # the front ones are red
            canvas.disc(rotors[k] + 0.04 * rotation[:, 2], 0.16, (*DARK, 220), rotation)
            canvas.disc(rotors[k] + 0.04 * rotation[:, 2], 0.138, (*colour, 190), rotation)

    def _below(self, place: np.ndarray) -> np.ndarray:
        """The point under a place: on the ground, or on a box."""
        low, high = self.boxes.low, self.boxes.high
        under = ((low[:, :2] < place[:2]) & (place[:2] < high[:, :2])).all(axis=1) & (high[:, 2] <= place[2])
        return np.array([*place[:2], high[under, 2].max(initial=0.0)])

    def _marks(self, canvas: Canvas, moment: Moment, ended: bool) -> None:
        """Velocities, the goal's distance and the flight's end, over everything else."""
        camera = canvas.camera
        for vector, colour in ((moment.command, COMMANDED), (moment.velocity, FLOWN)):
            seen = camera.look(np.stack([moment.position, moment.position + ARROW * vector]))
            if seen[:, 2].min() > NEAR:
                start, tip = camera.screen(seen)
                arrow(canvas.solid, start, tip, colour, 3.4 * self.unit)
        seen = camera.look(self.playback.goal)
        distance = float(np.linalg.norm(self.playback.goal - moment.position))
        if seen[2] > NEAR and distance > 2.0:
            (x, y), size = camera.screen(seen).tolist(), 7 * self.unit
            y -= 28 * self.unit
            canvas.glass.polygon([x - size, y, x, y - size, x + size, y, x, y + size], (*GOAL, 230))
            edge = {"stroke_width": 2 * self.unit, "stroke_fill": INK}
            canvas.solid.text((x + 1.7 * size, y), f"goal {distance:.0f} m", GOAL, font(13 * self.unit), "lm", **edge)
        if ended:
            here = camera.screen(camera.look(moment.position))
            mark_end(canvas.glass, here, 78 * self.unit, self.playback.outcome)


class MapView:
    """The whole map from above, north up."""

    def __init__(self, scene: Scene, playback: Playback, side: int) -> None:
        self.playback, self.side, self.half = playback, side * FINE, scene.ground_half + 1.0
        self.scale, self.unit = self.side / (2 * self.half), self.side / 480  # pixels per m; pixels
        self.standing = playback.size[:, 1] > CUBOID_HEIGHT
        self.backdrop = Image.new("RGB", (self.side, self.side), PAPER)
        draw = ImageDraw.Draw(self.backdrop)
        for place in np.arange(-20.0, 21.0, 5.0):
            line = np.array([[place, -self.half], [place, self.half]])
            draw.line(self.pixels(line), (216, 221, 224), FINE)
            draw.line(self.pixels(line[:, ::-1]), (216, 221, 224), FINE)
        border = scene.border * np.array([[-1, 1], [1, -1]])
        draw.rectangle(self.pixels(border), None, LINE, FINE)
        boxes = scene.boxes_of(playback.map_index).astype(float)
        for box, colour in zip(boxes, height_colours(boxes[:, 4]).astype(int).tolist(), strict=True):
            x0, y0, x1, y1 = self.pixels(box[[0, 3, 2, 1]].reshape(2, 2))
            draw.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), tuple(colour))
        route = self.pixels(np.stack([playback.start, playback.goal]))
        ImageDraw.Draw(self.backdrop, "RGBA").line(route, (*GOAL, 60), round(1.5 * self.unit))
        self._spot(draw, playback.start, 4, None, FLOWN)
        self._spot(draw, playback.goal, 7, None, GOAL)
        self._spot(draw, playback.goal, 3, GOAL, GOAL)

    def pixels(self, points: np.ndarray) -> list[float]:
        """Pixels x y x y … of points (k, 2 or 3)."""
        return ((points[:, :2] * [1.0, -1.0] + self.half) * self.scale).ravel().tolist()

    def _spot(
        self, draw: ImageDraw.ImageDraw, place: np.ndarray, radius: float, fill: Colour | None, edge: Colour
    ) -> None:
        (x, y), r = self.pixels(place[None]), radius * self.unit
        draw.ellipse((x - r, y - r, x + r, y + r), fill, edge, max(1, round(1.5 * self.unit)))

    def draw(self, moment: Moment, ended: bool) -> Image.Image:
        """The map at a moment, in its final size."""
        image = self.backdrop.copy()
        draw, glass = ImageDraw.Draw(image), ImageDraw.Draw(image, "RGBA")
        glass.polygon(self.pixels(moment.fan), (*MISS, 60), (*MISS, 150))
        for x, y in np.array(self.pixels(moment.hits)).reshape(-1, 2).tolist():
            draw.ellipse((x - self.unit, y - self.unit, x + self.unit, y + self.unit), HIT)
        self._moving(draw, moment)
        draw.line(self.pixels(moment.trail), rgb(COLOURS[self.playback.outcome]), round(2.4 * self.unit), "curve")
        here = np.array(self.pixels(moment.position[None]))
        for vector, colour in ((moment.command, COMMANDED), (moment.velocity, FLOWN)):
            arrow(draw, here, here + 1.2 * self.scale * vector[:2] * [1.0, -1.0], colour, 2.2 * self.unit)
        self._spot(draw, moment.position, 3.5, INK, DARK)
        if ended:
            mark_end(glass, here, 15 * self.unit, self.playback.outcome)
        return image.reduce(FINE)

    def _moving(self, draw: ImageDraw.ImageDraw, moment: Moment) -> None:
        radius = np.maximum(self.playback.size[:, 0] / 2 * self.scale, 2 * self.unit)
        centre = np.array(self.pixels(moment.moving)).reshape(-1, 2)
        for (x0, y0), (x1, y1), standing, told in zip(
            (centre - radius[:, None]).tolist(), (centre + radius[:, None]).tolist(), self.standing, moment.told,
            strict=True,
        ):  # fmt: skip
            shape = draw.ellipse if standing else draw.rectangle
            shape((x0, y0, x1, y1), TOLD if told else MOVING)


def fitting(text: str, width: float, letters: ImageFont.FreeTypeFont) -> str:
    """Text on one line, cut off where it would be wider than so many pixels."""
    text = one_line(text, 200)
    while text and letters.getlength(text) > width:
        text = text[:-2] + "…" if len(text) > 1 else ""
    return text


class TextPanel:
    """What is flown and how it goes, in words and numbers."""

    def __init__(self, title: str, about: str, playback: Playback, width: int, height: int) -> None:
        self.playback, self.width, self.unit = playback, width, height / 240  # pixels
        u, room = self.unit, width - 40 * height / 240
        self.backdrop = Image.new("RGB", (width, height), PANEL)
        draw = ImageDraw.Draw(self.backdrop)
        shrink = room / max(font(19 * u, True).getlength(one_line(title, 200)), 1.0)
        letters = font(u * min(19.0, max(19 * shrink, 13.0)), True)  # a long title is first smaller, then cut
        draw.text((20 * u, 27 * u), fitting(title, room, letters), INK, letters, "lm")
        draw.text((20 * u, 44 * u), fitting(about, room, font(14 * u)), FAINT, font(14 * u))
        for k, caption in enumerate(("seconds", "m/s", "m to the goal")):
            draw.text((self._column(k), 126 * u), caption, FAINT, font(13 * u))
        x = 20 * u
        for colour, name in ((COMMANDED, "commanded"), (FLOWN, "flown"), (HIT, "LiDAR"), (TOLD, "observed obstacle")):
            draw.rectangle((x, 216 * u, x + 9 * u, 225 * u), colour)
            draw.text((x + 15 * u, 220.5 * u), name, FAINT, font(12 * u), "lm")
            x += 32 * u + font(12 * u).getlength(name)

    def _column(self, number: int) -> float:
        return (20 + 155 * number) * self.unit

    def draw(self, moment: Moment, ended: bool) -> Image.Image:
        """The panel at a moment."""
        image, u, playback = self.backdrop.copy(), self.unit, self.playback
        draw = ImageDraw.Draw(image)
        distance = float(np.linalg.norm(playback.goal - moment.position))
        for k, number in enumerate((moment.time, float(np.linalg.norm(moment.velocity)), distance)):
            draw.text((self._column(k), 80 * u), f"{number:.1f}", INK, font(38 * u))
        left, top, right, bottom = 20 * u, 158 * u, self.width - 20 * u, 196 * u
        if ended:
            draw.rounded_rectangle((left, top, right, bottom), 8 * u, rgb(COLOURS[playback.outcome]))
            draw.text(((left + right) / 2, (top + bottom) / 2), SHORT[playback.outcome], INK, font(18 * u, True), "mm")
            return image
        way = 1.0 - distance / max(float(np.linalg.norm(playback.goal - playback.start)), 1e-6)  # of the way, so far
        draw.rounded_rectangle((left, top, right, bottom), 8 * u, (48, 56, 66))
        draw.rounded_rectangle(
            (left, top, left + (20 * u + max(way, 0) * (right - left - 20 * u)), bottom), 8 * u, (62, 80, 100)
        )
        draw.text(((left + right) / 2, (top + bottom) / 2), "flying", FAINT, font(18 * u), "mm")
        return image


class FlightPicture:
    """Pictures of one flight: the chase view on the left, on the right the map above the text."""

    def __init__(self, flights: Flights, index: int, title: str, about: str, size: tuple[int, int]) -> None:
        width, height = size
        side = min(round(height * 2 / 3), width // 2)
        self.size, self.playback = size, Playback(flights, index)
        self.parts = (
            ((0, 0), ChaseView(flights.scene, self.playback, width - side, height)),
            ((width - side, 0), MapView(flights.scene, self.playback, side)),
            ((width - side, side), TextPanel(title, about, self.playback, side, height - side)),
        )

    def draw(self, time: float, ended: bool = False) -> Image.Image:
        """The picture at a time of the flight, in s."""
        moment, image = self.playback.at(time), Image.new("RGB", self.size)
        for corner, part in self.parts:
            image.paste(part.draw(moment, ended), corner)
        return image
