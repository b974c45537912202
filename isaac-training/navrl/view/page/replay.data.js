// Flights as a page stores them: unpacking, and what is known at a moment between two samples.
// navrl/view/replay.py writes the data; every array here is in the order in which it is written there.
"use strict";

const UNPACKED_LIMIT = 64e6; // bytes: what a page may unpack to, wherever it comes from

// Base64 of gzip to bytes.
async function unpack(text) {
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")).getReader();
  const chunks = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    chunks.push(value);
    size += value.length;
    if (size > UNPACKED_LIMIT) throw new Error("the flights are too large");
  }
  return new Blob(chunks).arrayBuffer();
}

// Takes one array after the other from a buffer.
class Cursor {
  constructor(buffer, at) {
    this.buffer = buffer;
    this.at = at;
  }

  take(Type, count) {
    const end = this.at + count * Type.BYTES_PER_ELEMENT;
    const fits = Number.isInteger(count) && count >= 0 && end <= this.buffer.byteLength;
    if (!fits) throw new Error("the flights are cut off");
    const array = new Type(this.buffer.slice(this.at, end)); // a copy: arrays of 16 bits must be aligned
    this.at = end;
    return array;
  }

  // Columns of differences to rows of numbers: (columns, rows) int16 to (rows, columns) float.
  sums(rows, columns, step) {
    const steps = this.take(Int16Array, rows * columns);
    const out = new Float32Array(rows * columns);
    for (let c = 0; c < columns; c++) {
      for (let r = 0, sum = 0; r < rows; r++) {
        sum += steps[c * rows + r];
        out[r * columns + c] = sum * step;
      }
    }
    return out;
  }
}

// Everything in a page: { about: the header, maps, flights }.
function readFlights(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const about = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const cursor = new Cursor(buffer, 4 + size);
  const maps = about.maps.map((map) => new FlightMap(map, about, cursor));
  const flights = about.flights.map((flight) => new Flight(flight, about, maps, cursor));
  if (!flights.length) throw new Error("no flights were recorded");
  return { about, maps, flights };
}

// Boxes and moving obstacles of one map.
class FlightMap {
  constructor(map, about, cursor) {
    this.number = map.number;
    this.seconds = about.seconds;
    this.boxes = Float32Array.from(cursor.take(Int16Array, map.boxes * 5), (mm) => mm * 1e-3); // x0 y0 x1 y1 height
    this.count = map.moving;
    const sizes = cursor.take(Int16Array, 2 * map.moving);
    this.width = Float32Array.from(sizes.subarray(0, map.moving), (mm) => mm * 1e-3);
    this.height = Float32Array.from(sizes.subarray(map.moving), (mm) => mm * 1e-3);
    this.first = new Uint32Array(map.moving + 1); // key frames of obstacle j: first[j] to first[j + 1]
    cursor.take(Uint16Array, map.moving).forEach((keys, j) => (this.first[j + 1] = this.first[j] + keys));
    if (this.first[map.moving] !== map.keys) throw new Error("the flights are damaged");
    this.keySample = cursor.take(Uint16Array, map.keys);
    this.keyPlace = cursor.sums(map.keys, 3, about.steps[3]);
  }

  // Place of moving obstacle j at `time`, on the straight line between its key frames.
  moving(j, time, out) {
    const sample = time / this.seconds;
    let low = this.first[j];
    let high = this.first[j + 1] - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.keySample[middle] <= sample) low = middle;
      else high = middle;
    }
    const span = this.keySample[high] - this.keySample[low];
    const u = span ? clamp((sample - this.keySample[low]) / span, 0, 1) : 0;
    for (let i = 0; i < 3; i++) out[i] = mix(this.keyPlace[3 * low + i], this.keyPlace[3 * high + i], u);
    return out;
  }

  // From a point to moving obstacle j at `time`: [across, up]. All of them collide as upright cylinders.
  movingGap(j, time, point) {
    const place = this.moving(j, time, [0, 0, 0]);
    const across = Math.hypot(place[0] - point[0], place[1] - point[1]) - this.width[j] / 2;
    return [Math.max(across, 0), Math.max(Math.abs(place[2] - point[2]) - this.height[j] / 2, 0)];
  }

  boxGap(i, point) {
    const [x0, y0, x1, y1, height] = this.boxes.subarray(5 * i, 5 * i + 5);
    const dx = Math.max(x0 - point[0], 0, point[0] - x1);
    const dy = Math.max(y0 - point[1], 0, point[1] - y1);
    return Math.hypot(dx, dy, Math.max(point[2] - height, 0));
  }
}

// One flight: samples every `seconds`, the last one at `length`.
class Flight {
  constructor(flight, about, maps, cursor) {
    const n = flight.samples;
    if (!(n > 0)) throw new Error("a flight is empty");
    Object.assign(this, { number: flight.number, samples: n, start: flight.start, goal: flight.goal });
    this.reason = String(flight.reason);
    this.outcome = String(flight.outcome);
    this.map = maps[flight.map];
    this.seconds = about.seconds;
    this.lidar = about.lidar;
    this.radii = about.radii; // m: around the drone, around the goal
    this.length = clamp(flight.length, 1e-3 + Math.max(n - 2, 0) * about.seconds, Math.max(n - 1, 1) * about.seconds);
    this.position = cursor.sums(n, 3, about.steps[0]);
    this.quaternion = cursor.sums(n, 4, about.steps[1]);
    this.command = cursor.sums(n, 3, about.steps[2]);
    this.slots = about.told;
    this.told = cursor.take(Int16Array, n * about.told);
    this.beamCount = about.lidar.azimuths.length * about.lidar.elevations.length;
    this.beams = cursor.take(Uint8Array, n * this.beamCount);
    this.nearest = Float32Array.from({ length: n }, (_, k) => this.nearestAt(k));
    this.hit = this.findHit();
  }

  timeOf(sample) {
    return Math.min(sample * this.seconds, this.length);
  }

  // Sample before `time` and how far it is to the next one, 0 to 1.
  between(time) {
    const k = clamp(Math.floor(time / this.seconds), 0, Math.max(this.samples - 2, 0));
    const from = this.timeOf(k);
    const to = this.timeOf(k + 1);
    return [k, to > from ? clamp((time - from) / (to - from), 0, 1) : 0];
  }

  // Distance at a sample to what the drone sees or is told about, as Recording.clearance().
  nearestAt(k) {
    let least = this.lidar.range;
    for (let i = k * this.beamCount; i < (k + 1) * this.beamCount; i++) {
      if (this.beams[i] !== this.lidar.clear) least = Math.min(least, (this.beams[i] / 254) * this.lidar.range);
    }
    const here = this.position.subarray(3 * k, 3 * k + 3);
    for (const j of this.toldAt(k)) least = Math.min(least, Math.hypot(...this.map.movingGap(j, this.timeOf(k), here)));
    return least;
  }

  toldAt(k) {
    return this.told.subarray(k * this.slots, (k + 1) * this.slots).filter((j) => j >= 0 && j < this.map.count);
  }

  // The obstacle the flight ended at: { box } or { moving }, a number, or null.
  findHit() {
    const here = this.position.subarray(3 * (this.samples - 1));
    const nearest = (count, gap) => {
      const gaps = Array.from({ length: count }, (_, i) => gap(i));
      return gaps.length ? gaps.indexOf(Math.min(...gaps)) : -1;
    };
    if (this.outcome === "static_collision") {
      return { box: nearest(this.map.boxes.length / 5, (i) => this.map.boxGap(i, here)) };
    }
    if (this.outcome === "dynamic_collision") {
      return { moving: nearest(this.map.count, (j) => Math.max(...this.map.movingGap(j, this.length, here))) };
    }
    return null;
  }

  // Velocity at a sample, from its neighbours.
  slope(k, axis) {
    const before = Math.max(k - 1, 0);
    const after = Math.min(k + 1, this.samples - 1);
    const span = this.timeOf(after) - this.timeOf(before);
    return span > 0 ? (this.position[3 * after + axis] - this.position[3 * before + axis]) / span : 0;
  }

  // Position, attitude, velocities and distances at `time`. Position is a cubic between samples: no jerks at 60 Hz.
  at(time) {
    const [k, u] = this.between(time);
    const next = Math.min(k + 1, this.samples - 1);
    const span = this.timeOf(next) - this.timeOf(k);
    const position = [0, 0, 0];
    const velocity = [0, 0, 0];
    for (let i = 0; i < 3; i++) {
      const [p0, p1] = [this.position[3 * k + i], this.position[3 * next + i]];
      const [v0, v1] = [this.slope(k, i), this.slope(next, i)];
      const [u2, u3] = [u * u, u * u * u];
      position[i] =
        (2 * u3 - 3 * u2 + 1) * p0 + (u3 - 2 * u2 + u) * span * v0 + (3 * u2 - 2 * u3) * p1 + (u3 - u2) * span * v1;
      velocity[i] = mix(v0, v1, u);
    }
    return {
      sample: k,
      position,
      velocity,
      quaternion: this.attitude(k, next, u),
      command: [0, 1, 2].map((i) => mix(this.command[3 * k + i], this.command[3 * next + i], u)),
      told: this.toldAt(u < 0.5 ? k : next),
      speed: Math.hypot(...velocity),
      toGoal: Math.hypot(...position.map((p, i) => p - this.goal[i])),
      nearest: mix(this.nearest[k], this.nearest[next], u),
    };
  }

  attitude(k, next, u) {
    const a = this.quaternion.subarray(4 * k, 4 * k + 4);
    const b = this.quaternion.subarray(4 * next, 4 * next + 4);
    const same = a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3] < 0 ? -1 : 1; // q and -q are one attitude
    const q = [0, 1, 2, 3].map((i) => mix(a[i], same * b[i], u));
    const norm = Math.hypot(...q) || 1;
    return q.map((value) => value / norm);
  }

  // Ends of the LiDAR beams at `time`: calls visit(end, range, hit) for each.
  eachBeam(state, time, visit) {
    const [k, u] = this.between(time);
    const next = Math.min(k + 1, this.samples - 1);
    const { range, clear, azimuths, elevations } = this.lidar;
    const yaw = yawOf(state.quaternion);
    let i = 0;
    for (const azimuth of azimuths) {
      for (const elevation of elevations) {
        const now = this.beams[k * this.beamCount + i];
        const then = this.beams[next * this.beamCount + i];
        i++;
        // Between samples a beam glides along a surface but does not sweep from one obstacle to another.
        const glides = now !== clear && then !== clear && Math.abs(now - then) < 24;
        const value = glides ? mix(now, then, u) : u < 0.5 ? now : then;
        const hit = value !== clear;
        const reach = hit ? (value / 254) * range : range;
        const across = reach * Math.cos(elevation);
        const end = [
          state.position[0] + across * Math.cos(yaw + azimuth),
          state.position[1] + across * Math.sin(yaw + azimuth),
          state.position[2] + reach * Math.sin(elevation),
        ];
        visit(end, reach, hit);
      }
    }
  }
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

function mix(a, b, u) {
  return a + (b - a) * u;
}

function smooth(low, high, value) {
  const u = clamp((value - low) / (high - low), 0, 1);
  return u * u * (3 - 2 * u);
}

function yawOf([w, x, y, z]) {
  return Math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z));
}
