// The page: list of flights, timeline, cameras, keys and fingers.

const AFTER_END = 1.6; // s that the end of a flight stays before the next one follows
const CLOSE = 0.5; // m: nearer than this is shown in red
const NAMES = {
  success: "success", static_collision: "hit a box", dynamic_collision: "hit a moving obstacle",
  out_of_bounds: "left the height limits", timeout: "ran out of time",
};

const $ = (id) => document.getElementById(id);

function element(tag, text = "", className = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  if (className) node.className = className;
  return node;
}

// A colour of the data, somewhat lighter to be read on dark ground; grey if it is none.
function readColour(text) {
  const match = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(String(text));
  const rgb = match ? match.slice(1).map((part) => parseInt(part, 16) / 255) : [0.6, 0.6, 0.6];
  return rgb.map((value) => mix(value, 1, 0.14));
}

// Gives a canvas as many pixels as it takes up on the page, times `ratio`; returns width and height.
function fit(canvas, ratio) {
  const size = [canvas.clientWidth, canvas.clientHeight].map((length) => Math.max(1, Math.round(length * ratio)));
  if (canvas.width !== size[0]) canvas.width = size[0]; // setting it would clear it
  if (canvas.height !== size[1]) canvas.height = size[1];
  return size;
}

function press(group, pressed) {
  for (const button of group.children) button.setAttribute("aria-pressed", String(pressed(button)));
}

function css(rgb) {
  return `rgb(${rgb.map((value) => Math.round(value * 255)).join(" ")})`;
}

// --- cameras -------------------------------------------------------------------------------------------------------

class Camera {
  constructor() {
    this.mode = "follow";
    this.reset();
    this.since = Infinity; // s since the mode changed: the view glides from the old one to the new one
    this.last = null;
  }

  reset() {
    Object.assign(this, { yaw: 0, pitch: this.mode === "above" ? Math.PI / 2 : 0.56, zoom: 1 });
  }

  choose(mode, state) {
    if (mode === "orbit" && this.mode !== "orbit") this.takeOff(state);
    else {
      this.mode = mode;
      this.reset();
    }
    this.since = 0;
    this.from = this.last;
  }

  // From following to orbiting around a fixed point, without a jump.
  takeOff(state) {
    const view = this.last;
    const away = view ? add(view.eye, state.position, -1) : [-5, 0, 4];
    const turn = this.mode === "eyes" ? this.heading : Math.atan2(-away[1], -away[0]);
    const distance = this.mode === "eyes" ? 6 : Math.hypot(...away);
    this.pitch = this.mode === "eyes" ? 0.5 : clamp(Math.asin(away[2] / Math.max(distance, 1e-3)), 0.02, 1.5);
    if (this.mode === "above") this.pitch = 0.9;
    this.mode = "orbit";
    this.yaw = turn - this.heading;
    this.zoom = distance / this.reach();
    this.centre = state.position.slice();
  }

  reach() {
    return { follow: 6.4, above: 44, eyes: 1, orbit: 6.4 }[this.mode] * (this.portrait ? 1.25 : 1);
  }

  turn(dx, dy) {
    this.yaw -= dx * 0.006;
    const lowest = this.mode === "eyes" ? -1.2 : 0.02;
    this.pitch = clamp(this.pitch + dy * 0.005 * (this.mode === "eyes" ? -1 : 1), lowest, Math.PI / 2);
  }

  scale(factor) {
    this.zoom = clamp(this.zoom * factor, 0.3, 6);
  }

  // Moves the centre of the orbit by pixels of the page.
  pan(dx, dy, height, state) {
    if (this.mode !== "orbit") this.choose("orbit", state);
    const metres = (2 * this.reach() * this.zoom * Math.tan(this.fov / 2)) / height;
    const turn = this.heading + this.yaw;
    const [ahead, right] = [[Math.cos(turn), Math.sin(turn), 0], [Math.sin(turn), -Math.cos(turn), 0]];
    const [sideways, onward] = [-dx * metres, (dy * metres) / Math.max(Math.sin(this.pitch), 0.35)];
    const [x, y, z] = add(add(this.centre, right, sideways), ahead, onward);
    this.centre = [clamp(x, -40, 40), clamp(y, -40, 40), z];
  }

  // { eye, target, up, fov, eyes } for the drone now; `seconds` have passed since the last call.
  look(flight, state, aspect, seconds) {
    this.portrait = aspect < 1;
    this.heading = Math.atan2(flight.goal[1] - flight.start[1], flight.goal[0] - flight.start[0]);
    this.fov = { follow: 0.8, above: 0.42, eyes: 1.25, orbit: 0.8 }[this.mode] * (this.portrait ? 1.2 : 1);
    const wanted = this.mode === "eyes" ? this.eyes(state) : this.around(flight, state);
    this.since += seconds;
    const u = this.from ? smooth(0, 0.55, this.since) : 1;
    const view = { ...wanted, fov: this.fov, eyes: this.mode === "eyes" && u > 0.6 };
    if (u < 1) {
      for (const part of ["eye", "target", "up"]) {
        view[part] = wanted[part].map((value, i) => mix(this.from[part][i], value, u));
      }
      view.fov = mix(this.from.fov, this.fov, u);
    }
    this.last = view;
    return view;
  }

  eyes(state) {
    const turn = yawOf(state.quaternion) + this.yaw;
    const tilt = this.pitch - 0.56; // level unless turned by hand
    const way = [Math.cos(turn) * Math.cos(tilt), Math.sin(turn) * Math.cos(tilt), Math.sin(tilt)];
    return { eye: state.position, target: add(state.position, way), up: [0, 0, 1] };
  }

  around(flight, state) {
    const centre = this.mode === "orbit" ? this.centre : state.position;
    const turn = this.heading + this.yaw;
    const distance = this.reach() * this.zoom;
    const ahead = [Math.cos(turn), Math.sin(turn), 0];
    const across = distance * Math.cos(this.pitch);
    const eye = add(add(centre, ahead, -across), [0, 0, 1], distance * Math.sin(this.pitch));
    eye[2] = Math.max(eye[2], 0.3, clearHeight(flight, eye));
    const lead = this.mode === "follow" ? 1.1 * Math.cos(this.pitch) : 0; // look a bit ahead of the drone
    const steep = smooth(1.2, 1.5, this.pitch); // seen from above, ahead is up
    const up = normalize(add([0, 0, 1 - steep], ahead, steep));
    return { eye, target: add(centre, ahead, lead), up };
  }
}

// The height a camera needs at a place so as not to be inside a box: rises gently as it comes near one.
function clearHeight(flight, [x, y]) {
  const { boxes } = flight.map;
  let height = 0;
  for (let i = 0; i < boxes.length; i += 5) {
    const dx = Math.max(boxes[i] - x, 0, x - boxes[i + 2]);
    const dy = Math.max(boxes[i + 1] - y, 0, y - boxes[i + 3]);
    const away = Math.hypot(dx, dy);
    if (away < 2) height = Math.max(height, (boxes[i + 4] + 0.4) * (1 - smooth(0.35, 2, away)));
  }
  return height;
}

// --- the player ----------------------------------------------------------------------------------------------------

class Player {
  constructor(data, painter) {
    this.data = data;
    this.painter = painter;
    this.camera = new Camera();
    const colours = Object.entries(data.about.colours);
    this.colours = Object.fromEntries(colours.map(([name, colour]) => [name, readColour(colour)]));
    this.show = { beams: true, velocity: true };
    this.speed = 1;
    this.playing = true;
    this.frames = 0;
    this.detail = 1; // of the resolution; less on slow machines
    this.slow = 0; // share of slow frames, lately
    this.settling = 0; // s that are still drawn after something changed
    this.buildList();
    this.connect();
    this.choose(0);
    this.setSpeed(1);
    this.setCamera("follow");
    requestAnimationFrame((now) => this.tick(now));
  }

  get flight() {
    return this.data.flights[this.index];
  }

  colourOf(outcome) {
    return this.colours[outcome] || [0.6, 0.6, 0.6];
  }

  // --- what the page says ---

  buildList() {
    const counts = Object.entries(this.data.about.counts).filter(([, count]) => count > 0);
    const total = counts.reduce((sum, [, count]) => sum + count, 0);
    for (const [outcome, count] of counts) {
      const share = element("i");
      const item = element("li", `${NAMES[outcome] || outcome} ${((100 * count) / total).toFixed(1)} %`);
      share.style.flexGrow = count;
      for (const node of [share, item]) node.style.setProperty("--c", css(this.colourOf(outcome)));
      $("shares").append(share);
      $("counts").append(item);
    }
    $("shares").setAttribute("aria-label", `outcomes of ${total} flights`);
    $("counts").append(element("li", `of ${total} flights`, "total"));
    this.items = this.data.flights.map((flight, index) => {
      const button = element("button");
      const graph = element("canvas");
      button.style.setProperty("--c", css(this.colourOf(flight.outcome)));
      button.append(element("b", flight.reason), element("time", `${flight.length.toFixed(1)} s`));
      button.append(element("small", `flight ${flight.number} · map ${flight.map.number}`), graph);
      button.addEventListener("click", () => this.choose(index, true));
      const item = element("li");
      item.append(button);
      $("flights").append(item);
      return { button, graph };
    });
  }

  // How near obstacles are over time: the nearer, the higher.
  drawGraph(canvas, flight, strong) {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = fit(canvas, ratio);
    const paint = canvas.getContext("2d");
    const at = (k) => {
      const near = 1 - clamp(flight.nearest[k] / flight.lidar.range, 0, 1);
      return [(flight.timeOf(k) / flight.length) * width, height * (1 - 0.92 * near ** 1.6)];
    };
    const fill = paint.createLinearGradient(0, 0, 0, height);
    const colour = css(this.colourOf(flight.outcome));
    const alpha = strong ? 1 : 0.8;
    fill.addColorStop(0, `rgb(255 110 80 / ${0.85 * alpha})`);
    fill.addColorStop(0.35, `rgb(255 190 90 / ${0.55 * alpha})`);
    fill.addColorStop(1, `rgb(90 200 210 / ${0.22 * alpha})`);
    paint.clearRect(0, 0, width, height);
    paint.beginPath();
    paint.moveTo(0, height);
    for (let k = 0; k < flight.samples; k++) paint.lineTo(...at(k));
    paint.lineTo(width, height);
    paint.fillStyle = fill;
    paint.fill();
    paint.fillStyle = colour;
    paint.fillRect(width - 2 * ratio, 0, 2 * ratio, height);
  }

  layout() {
    this.covered = ($("view").clientHeight - $("panel").offsetTop) / $("view").clientHeight; // by the panel
    this.items.forEach(({ graph }, i) => this.drawGraph(graph, this.data.flights[i], false));
    this.drawGraph($("graph"), this.flight, true);
    this.changed = true;
  }

  say(state) {
    const put = (id, value, unit) => {
      const node = $(id);
      node.textContent = value;
      node.append(element("small", unit));
    };
    const { range } = this.flight.lidar;
    put("fact-time", this.time.toFixed(1), `of ${this.flight.length.toFixed(1)} s`);
    put("fact-speed", state.speed.toFixed(2), "m/s");
    put("fact-goal", state.toGoal.toFixed(1), "m");
    put("fact-nearest", state.nearest < range - 0.01 ? state.nearest.toFixed(2) : `> ${range}`, "m");
    $("fact-nearest").classList.toggle("close", state.nearest < CLOSE);
    $("now").classList.toggle("over", this.time >= this.flight.length);
    $("scrub").value = this.time / this.flight.length;
    $("scrub").setAttribute("aria-valuetext", `${this.time.toFixed(1)} seconds`);
  }

  // --- what a person does ---

  choose(index, byHand = false) {
    const count = this.data.flights.length;
    this.index = ((index % count) + count) % count;
    this.time = 0;
    this.held = 0;
    if (byHand) this.play(true);
    const { flight } = this;
    this.painter.setFlight(flight);
    if (this.camera.mode === "orbit") this.camera.centre = flight.position.slice(0, 3);
    this.items.forEach(({ button }, i) => button.setAttribute("aria-current", String(i === this.index)));
    const { button } = this.items[this.index];
    const list = $("flights"); // not scrollIntoView: it would scroll a page that embeds this one
    const top = button.offsetTop - list.offsetTop;
    const lowest = top + button.offsetHeight - list.clientHeight + 8;
    list.scrollTo({ top: clamp(list.scrollTop, lowest, top - 8), left: button.offsetLeft - 14, behavior: "smooth" });
    const now = $("now");
    now.style.setProperty("--c", css(this.colourOf(flight.outcome)));
    now.children[0].textContent = flight.reason;
    now.children[1].textContent = `flight ${flight.number} · map ${flight.map.number}`;
    this.drawGraph($("graph"), flight, true);
    this.changed = true;
  }

  play(on) {
    if (on && !this.playing && this.time >= this.flight.length) this.seek(0);
    this.playing = on;
    this.held = 0;
    document.body.classList.toggle("playing", on);
  }

  seek(time) {
    this.time = clamp(time, 0, this.flight.length);
    this.held = 0;
    this.painter.settled = false;
    this.changed = true;
  }

  step(samples) {
    this.play(false);
    const { flight } = this;
    const nearest = Math.round(this.time / flight.seconds);
    this.seek(flight.timeOf(clamp(nearest + samples, 0, flight.samples - 1)));
  }

  setSpeed(speed) {
    this.speed = speed;
    press($("speeds"), (button) => Number(button.dataset.speed) === speed);
  }

  setCamera(mode) {
    this.camera.choose(mode, this.flight.at(this.time));
    this.markCamera();
  }

  markCamera() {
    press($("cameras"), (button) => button.dataset.camera === this.camera.mode);
    this.changed = true;
  }

  toggle(name) {
    this.show[name] = !this.show[name];
    $(name).setAttribute("aria-pressed", String(this.show[name]));
    this.changed = true;
  }

  connect() {
    const click = (node, action) => node.addEventListener("click", () => {
      action();
      if (!node.matches(":focus-visible")) node.blur(); // after a mouse the space bar is for play and pause
    });
    click($("play"), () => this.play(!this.playing));
    click($("previous"), () => this.choose(this.index - 1));
    click($("next"), () => this.choose(this.index + 1));
    for (const name of ["beams", "velocity"]) click($(name), () => this.toggle(name));
    for (const button of $("speeds").children) click(button, () => this.setSpeed(Number(button.dataset.speed)));
    for (const button of $("cameras").children) click(button, () => this.setCamera(button.dataset.camera));
    $("scrub").addEventListener("input", (event) => {
      this.play(false);
      this.seek(Number(event.target.value) * this.flight.length);
    });
    document.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.layout()).observe($("view"));
    new Fingers($("view"), this);
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === " " && event.target.matches("button")) return; // presses the button
    const modes = { 1: "follow", 2: "above", 3: "eyes", 4: "orbit" };
    const seconds = event.shiftKey ? Math.round(1 / this.flight.seconds) : 1;
    const actions = {
      " ": () => this.play(!this.playing),
      ArrowLeft: () => this.step(-seconds),
      ArrowRight: () => this.step(seconds),
      ArrowUp: () => this.choose(this.index - 1),
      ArrowDown: () => this.choose(this.index + 1),
      l: () => this.toggle("beams"),
      v: () => this.toggle("velocity"),
    };
    const action = event.key in modes ? () => this.setCamera(modes[event.key]) : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  // --- time ---

  tick(now) {
    requestAnimationFrame((next) => this.tick(next));
    const passed = Math.min((now - (this.before ?? now)) / 1000, 0.25); // a page in the background does not run on
    this.before = now;
    if (this.playing) this.advance(passed);
    const moving = this.playing || this.changed || this.camera.since < 0.6;
    this.settling = moving ? 0.6 : this.settling - passed; // obstacles may still be fading
    if (moving || this.settling > 0) this.paint(passed);
  }

  advance(passed) {
    const { length } = this.flight;
    if (this.time < length) this.time = Math.min(this.time + passed * this.speed, length);
    else {
      this.held += passed;
      if (this.held > AFTER_END) this.choose(this.index + 1);
    }
  }

  paint(passed) {
    const canvas = $("view");
    this.adapt(passed);
    const pixels = Math.min(window.devicePixelRatio || 1, 2) * (this.playing ? this.detail : 1); // stills are sharp
    const [width, height] = fit(canvas, pixels);
    const state = this.flight.at(this.time);
    const view = this.camera.look(this.flight, state, width / height, passed);
    const burst = this.playing ? 0.5 + 0.5 * Math.sin(Math.min(this.held * 5, Math.PI / 2)) : 1;
    this.painter.draw(this.time, state, view, {
      ...this.show, pixels, burst, seconds: passed, colour: this.colourOf(this.flight.outcome), shift: this.covered,
    });
    this.say(state);
    this.changed = false;
    this.frames++;
  }

  // Fewer pixels where frames take long, so that flights stay smooth on slow machines.
  adapt(passed) {
    if (!this.playing || this.frames < 4) return;
    this.slow = mix(this.slow, passed > 0.045 ? 1 : 0, 0.12);
    if (this.slow > 0.6 && this.detail > 0.5) {
      this.detail = Math.max(0.5, this.detail * 0.75);
      this.slow = 0;
    }
  }
}

// Pointers on the canvas: one turns the camera, two pinch and pan; the wheel zooms, another mouse button pans.
class Fingers {
  constructor(canvas, player) {
    this.canvas = canvas;
    this.player = player;
    this.down = new Map();
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.down.set(event.pointerId, [event.clientX, event.clientY]);
    });
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, (event) => this.down.delete(event.pointerId));
    }
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      player.camera.scale(Math.exp(clamp(event.deltaY, -200, 200) * 0.0015));
      player.changed = true;
    }, { passive: false });
  }

  move(event) {
    const before = this.down.get(event.pointerId);
    if (!before) return;
    const { camera, flight, time } = this.player;
    const now = [event.clientX, event.clientY];
    const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
    const other = [...this.down].find(([id]) => id !== event.pointerId);
    this.down.set(event.pointerId, now);
    const pan = (x, y) => camera.pan(x, y, this.canvas.clientHeight, flight.at(time));
    if (other) {
      const apart = ([x, y]) => Math.max(Math.hypot(x - other[1][0], y - other[1][1]), 20);
      camera.scale(apart(before) / apart(now));
      if (camera.mode === "orbit") pan(dx / 2, dy / 2);
    } else if (event.buttons > 1 || event.shiftKey) pan(dx, dy);
    else camera.turn(dx, dy);
    this.player.markCamera();
  }
}

// --- start ---------------------------------------------------------------------------------------------------------

// For tests and for the curious.
window.replay = { ready: false, error: null };

function fail(reason) {
  window.replay.error = reason;
  $("message").textContent = reason;
  $("message").hidden = false;
}

function expose(player) {
  const read = (name, get) => Object.defineProperty(window.replay, name, { get, enumerable: true });
  read("time", () => player.time);
  read("length", () => player.flight.length);
  read("flight", () => player.index);
  read("flights", () => player.data.flights.length);
  read("playing", () => player.playing);
  read("speed", () => player.speed);
  read("camera", () => player.camera.mode);
  read("eye", () => player.camera.last.eye);
  read("observed", () => Array.from(player.flight.at(player.time).told)); // moving obstacles
  read("still", () => !player.changed && player.settling <= 0); // nothing moves any more
  Object.assign(window.replay, {
    play: () => player.play(true),
    pause: () => player.play(false),
    seek: (time) => player.seek(time),
    choose: (index) => player.choose(index),
    onScreen: (point) => player.painter.onScreen(point),
    state: () => player.flight.at(player.time),
    boxes: () => Array.from(player.flight.map.boxes),
    moving: (j) => player.flight.map.moving(j, player.time, [0, 0, 0]),
    ready: true,
  });
}

async function start() {
  if (typeof DecompressionStream === "undefined") {
    return fail("This page needs a newer browser: this one has no DecompressionStream.");
  }
  let painter;
  try {
    painter = new Painter($("view"));
  } catch (error) {
    return fail(`This page draws with WebGL2, which this browser does not offer (${error.message}).`);
  }
  try {
    const player = new Player(readFlights(await unpack($("data").textContent)), painter);
    player.play(true);
    expose(player);
  } catch (error) {
    return fail(`The flights of this page cannot be read (${error.message}).`);
  }
  $("view").addEventListener("webglcontextlost", () => fail("The browser took the graphics away. Reload the page."));
}

start();
