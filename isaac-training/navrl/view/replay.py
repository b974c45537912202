"""Replay pages: one HTML file that shows recorded flights in 3-D, in any browser, without a network.

A page is a template, our style and script, and the flights as base64 of gzip. The script reads them with what every
browser brings along (DecompressionStream, WebGL2). viser can record pages too, but it needs a server with an open port
in the process that trains, and its pages have one timeline and no list of flights.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import stat
from functools import cache
from pathlib import Path

import numpy as np

from navrl.io.files import open_file, write_text
from navrl.monitor.flights import COLOURS
from navrl.schema import OUTCOMES
from navrl.sim.scene import Scene
from navrl.task.evaluation import Flights
from navrl.task.recording import CLEAR, Recording

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("replay.data.js", "replay.draw.js", "replay.js")  # in this order
DATA_LIMIT = 2_800_000  # characters of data in a page
PAGE_LIMIT = 3_000_000  # bytes of a page
MOST_BEAMS = (72, 8)  # azimuths and elevations shown; of a finer sensor every second, third … beam

REASONS = {
    "success": "success",
    "static_collision": "hit a box",
    "dynamic_collision": "hit a moving obstacle",
    "out_of_bounds": "left the height limits",
    "timeout": "ran out of time",
}
NEAR = 0.5  # m: a success that came closer than this to something is a near miss

# Steps of stored numbers. Together with gzip, 1 mm costs 2.3 bytes per sample of a flight.
POSITION_STEP = 1e-3  # m
QUATERNION_STEP = 1e-3
COMMAND_STEP = 1e-2  # m/s
MOVING_STEP = 1e-2  # m
KEY_TOLERANCE = 0.015  # m along each axis: samples of a moving obstacle that a straight line reproduces are dropped


# --- which flights ----------------------------------------------------------------------------------------------


def choose(flights: Flights, most: int = 12) -> list[tuple[int, str]]:
    """Recorded flights worth seeing, `most` at most, and why: failures first, then near misses, then successes.

    Half are failures, each kind in turn; half of the rest are near misses. What one kind leaves free the others get.
    """
    recording = _recording(flights)
    outcome = flights.outcome[: len(recording.samples)]
    kinds = [np.flatnonzero(outcome == index) for index in range(1, len(OUTCOMES))]
    failed = _in_turn([kind for kind in kinds if len(kind)])
    arrived = np.flatnonzero(outcome == OUTCOMES.index("success"))
    clearance = recording.clearance() if len(arrived) else np.zeros(0)
    by_clearance = arrived[np.argsort(clearance[arrived], kind="stable")]
    near = by_clearance[clearance[by_clearance] < NEAR]

    occurred = sum(len(kind) > 0 for kind in kinds)
    failed = failed[: min(most, max(most - len(arrived), most // 2, occurred))]
    left = most - len(failed)
    near = near[: (left + 1) // 2]
    others = by_clearance[~np.isin(by_clearance, near)]
    by_length = others[np.lexsort([others, flights.length[others]])]
    count = min(left - len(near), len(by_length))
    ordinary = by_length[np.arange(count) * (len(by_length) - 1) // max(count - 1, 1)]  # quickest to slowest

    return [
        *((index, REASONS[OUTCOMES[outcome[index]]]) for index in failed),
        *((int(index), f"near miss, {clearance[index]:.2f} m") for index in near),
        *((int(index), REASONS["success"]) for index in ordinary),
    ]


def _recording(flights: Flights) -> Recording:
    if flights.recording is None:
        raise ValueError("these flights were not recorded; fly them with record=True")
    return flights.recording


def _in_turn(lists: list[np.ndarray]) -> list[int]:
    """The first of each list, then the second of each, and so on."""
    ranked = [(place, kind, int(value)) for kind, values in enumerate(lists) for place, value in enumerate(values)]
    return [value for _, _, value in sorted(ranked)]


# --- data -------------------------------------------------------------------------------------------------------


def pack(flights: Flights, chosen: list[tuple[int, str]]) -> str:
    """The data of a page, base64 of gzip: length of the header (uint32), header (JSON), arrays (little endian).

    The arrays follow each other without gaps: first for every map of the header its boxes, moving sizes and key
    frames, then for every flight its position, attitude, command, told obstacles and beams. See page/replay.data.js.
    """
    recording = _recording(flights)
    maps = sorted({int(recording.map_index[index]) for index, _ in chosen})
    samples = [max(recording.samples[i] for i, _ in chosen if recording.map_index[i] == number) for number in maps]
    sensor, (turn, rise) = recording.sensor, _every(recording)
    header = {
        "seconds": recording.seconds,
        "radii": recording.radii,
        "colours": COLOURS,
        "counts": {name: int((flights.outcome == index).sum()) for index, name in enumerate(OUTCOMES)},
        "lidar": {
            "range": sensor.range,
            "clear": CLEAR,
            "azimuths": _rounded(sensor.azimuth_angles()[::turn]),
            "elevations": _rounded(sensor.elevation_angles()[::rise]),
        },
        "told": recording.told.shape[2],
        "steps": [POSITION_STEP, QUATERNION_STEP, COMMAND_STEP, MOVING_STEP],
        "maps": [],
        "flights": [],
    }
    arrays: list[np.ndarray] = []
    moving = recording.moving[: max(samples), maps].transpose(0, 2, 1, 3) * np.float32(1e-3)  # (T, 3, maps, K), m
    keys = key_frames(moving.reshape(*moving.shape[:2], -1)).reshape(len(moving), *moving.shape[2:])  # (T, maps, K)
    for place, (number, end) in enumerate(zip(maps, samples, strict=True)):
        about, parts = _pack_map(flights.scene, number, moving[:end, :, place], keys[:end, place])
        header["maps"].append(about)
        arrays += parts
    for index, reason in chosen:
        header["flights"].append(
            {
                "number": index,
                "map": maps.index(int(recording.map_index[index])),
                "samples": int(recording.samples[index]),
                "length": round(float(flights.length[index]), 4),
                "outcome": OUTCOMES[flights.outcome[index]],
                "reason": reason,
                "start": _rounded(recording.start[index]),
                "goal": _rounded(recording.goal[index]),
            }
        )
        arrays += _pack_flight(recording, index)
    text = json.dumps(header, separators=(",", ":")).encode()
    raw = b"".join([len(text).to_bytes(4, "little"), text, *(array.tobytes() for array in arrays)])
    return base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode()


def _every(recording: Recording) -> tuple[int, int]:
    """Every how manyth azimuth and elevation is shown."""
    azimuths, elevations = recording.beams.shape[2:]
    return -(-azimuths // MOST_BEAMS[0]), -(-elevations // MOST_BEAMS[1])


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 5) for value in values]


def _pack_map(scene: Scene, number: int, paths: np.ndarray, keys: np.ndarray) -> tuple[dict, list[np.ndarray]]:
    """Boxes, sizes of the moving obstacles, and their paths (T, 3, K) as key frames (T, K)."""
    boxes, count = scene.boxes_of(number), int(scene.moving_count[number])
    keys = keys[:, :count].copy()
    keys[-1] = True  # the path was cut here
    obstacle, sample = np.nonzero(keys.T)
    places = np.rint(paths[sample, :, obstacle] / MOVING_STEP)  # (keys, 3)
    about = {"number": number, "boxes": len(boxes), "moving": count, "keys": len(sample)}
    return (
        about,
        [
            _int16(np.rint(boxes * 1e3)),  # (boxes, 5) mm
            _int16(np.rint(scene.moving_size[number, :count].T * 1e3)),  # (2, K) mm: widths, heights
            keys.sum(0).astype("<u2"),  # (K,) key frames of each
            sample.astype("<u2"),  # (keys,)
            _int16(_steps(places)),  # (3, keys)
        ],
    )


def key_frames(paths: np.ndarray, tolerance: float = KEY_TOLERANCE) -> np.ndarray:
    """Samples (T, K) of paths (T, 3, K) to keep, so that straight lines between them come within `tolerance` m.

    Goes forward once for all obstacles: a line from the last key to sample t is good if its slope lies within the
    slopes that every sample before t allows.
    """
    samples, _, count = paths.shape
    keys = np.zeros((samples, count), bool)
    keys[0] = keys[-1] = True
    start, since = paths[0].copy(), np.zeros(count)  # place (3, K) and sample of the last key
    low, high = np.full_like(start, -np.inf), np.full_like(start, np.inf)  # slopes still allowed
    for t in range(1, samples):
        span = t - since
        slope = (paths[t] - start) / span
        bad = ((slope < low) | (slope > high)).any(0)
        if bad.any():
            keys[t - 1, bad] = True
            start[:, bad], since[bad] = paths[t - 1][:, bad], t - 1
            low[:, bad], high[:, bad], span[bad] = -np.inf, np.inf, 1
            slope[:, bad] = paths[t][:, bad] - start[:, bad]
        low, high = np.maximum(low, slope - tolerance / span), np.minimum(high, slope + tolerance / span)
    return keys


def _pack_flight(recording: Recording, index: int) -> list[np.ndarray]:
    samples, (turn, rise) = int(recording.samples[index]), _every(recording)
    values = (
        (recording.position, POSITION_STEP),
        (recording.quaternion, QUATERNION_STEP),
        (recording.command, COMMAND_STEP),
    )
    return [
        *(_int16(_steps(np.rint(array[:samples, index].astype(np.float64) / step))) for array, step in values),
        recording.told[:samples, index].astype("<i2"),  # (samples, told)
        recording.beams[:samples, index, ::turn, ::rise],  # (samples, azimuths, elevations) uint8
    ]


def _steps(values: np.ndarray) -> np.ndarray:
    """Differences (columns, rows) between the rows of whole numbers, which gzip packs better than the numbers."""
    return np.diff(values, axis=0, prepend=0).T


def _int16(values: np.ndarray) -> np.ndarray:
    return np.clip(values, -32768, 32767).astype("<i2")


# --- pages ------------------------------------------------------------------------------------------------------


def write_replay(path: Path, title: str, flights: Flights) -> None:
    """Write a page that shows the recorded flights worth seeing; fewer where they would not fit."""
    chosen = choose(flights)
    data = pack(flights, chosen)
    while len(data) > DATA_LIMIT and len(chosen) > 1:
        chosen = chosen[::2]
        data = pack(flights, chosen)
    write_text(path, viewer(data, title))


@cache
def _parts() -> tuple[str, str, str]:
    """Template, style and script."""
    script = "\n".join((PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return (PAGE / "replay.html").read_text(encoding="utf-8"), (PAGE / "replay.css").read_text(encoding="utf-8"), script


def viewer(data: str, title: str) -> str:
    """The whole document that shows `data`. It may run our script and nothing else, and may load nothing."""
    template, style, script = _parts()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {"TITLE": html.escape(title), "STYLE": style, "DIGEST": digest, "DATA": data, "SCRIPT": script}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def read_data(path: Path) -> str:
    """The data of a page that `write_replay` wrote; ValueError if it is none.

    The rest of the file is ignored: it may come from a stranger, so it is shown only in `viewer`'s document.
    """
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path} is not a regular file")
        if found.st_size > PAGE_LIMIT:
            raise ValueError(f"{path} is too large for a replay page: {found.st_size / 1e6:.1f} MB")
        with open_file(path, "rb") as file:
            content = file.read(PAGE_LIMIT)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error})") from None
    match = re.search(rb'<script id="data" type="text/plain">([A-Za-z0-9+/]+={0,2})</script>', content)
    if not match or len(match[1]) % 4 or len(match[1]) > DATA_LIMIT:
        raise ValueError(f"{path} is not a replay page")
    return match[1].decode("ascii")
