// Drawing with WebGL2: boxes, moving obstacles, the drone, beams and trails. Right-handed, z up, metres.

const DRONE_SIZE = 1.6; // drawn larger than life, ...
const DRONE_SHARE = 0.055; // ... and from afar at least as large as this share of the distance
const SEE_THROUGH = 0.1; // how much remains of an obstacle that hides the drone
const GROUND = 25; // m: half its side
const SHADOW_SIZE = 2048; // texels
const LIGHT = normalize([-0.55, -0.3, 0.85]); // toward the sun
const SKY = [0.062, 0.082, 0.118]; // at the horizon, and of the fog

const PALETTE = {
  low: [0.16, 0.27, 0.42], // boxes by height
  middle: [0.33, 0.47, 0.58],
  high: [0.8, 0.77, 0.68],
  moving: [0.1, 0.56, 0.58],
  told: [1.0, 0.76, 0.24],
  command: [0.98, 0.98, 1.0],
  flown: [0.35, 0.8, 1.0],
  hit: [1.0, 0.45, 0.3], // beams: near ...
  far: [0.3, 0.9, 0.85], // ... and far
  start: [0.75, 0.8, 0.88],
  goal: [0.36, 0.95, 0.55],
};

// --- vectors and matrices (column by column) ---------------------------------------------------------------------

function normalize(v) {
  const norm = Math.hypot(...v) || 1;
  return v.map((value) => value / norm);
}

function add(a, b, scale = 1) {
  return [a[0] + b[0] * scale, a[1] + b[1] * scale, a[2] + b[2] * scale];
}

function dot(a, b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

function cross(a, b) {
  return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
}

function multiply(a, b) {
  const out = new Float32Array(16);
  for (let c = 0; c < 4; c++) {
    for (let r = 0; r < 4; r++) {
      for (let i = 0; i < 4; i++) out[4 * c + r] += a[4 * i + r] * b[4 * c + i];
    }
  }
  return out;
}

function transform(m, [x, y, z]) {
  return [0, 1, 2, 3].map((r) => m[r] * x + m[4 + r] * y + m[8 + r] * z + m[12 + r]);
}

// `shift` moves the picture up, as a share of half its height.
function perspective(fov, aspect, near, far, shift) {
  const f = 1 / Math.tan(fov / 2);
  const depth = near - far;
  const last = [0, 0, (2 * far * near) / depth, 0];
  return new Float32Array([f / aspect, 0, 0, 0, 0, f, 0, 0, 0, -shift, (far + near) / depth, -1, ...last]);
}

function orthographic(half, near, far) {
  const depth = near - far;
  return new Float32Array([1 / half, 0, 0, 0, 0, 1 / half, 0, 0, 0, 0, 2 / depth, 0, 0, 0, (far + near) / depth, 1]);
}

function lookAt(eye, target, up) {
  const back = normalize(add(eye, target, -1));
  const right = normalize(cross(up, back));
  const top = cross(back, right);
  const m = [right, top, back];
  const out = new Float32Array(16);
  for (let r = 0; r < 3; r++) {
    for (let c = 0; c < 3; c++) out[4 * c + r] = m[r][c];
    out[12 + r] = -dot(m[r], eye);
  }
  out[15] = 1;
  return out;
}

function pose(position, [w, x, y, z], scale) {
  const s = scale;
  return new Float32Array([
    s * (1 - 2 * (y * y + z * z)), s * 2 * (x * y + w * z), s * 2 * (x * z - w * y), 0,
    s * 2 * (x * y - w * z), s * (1 - 2 * (x * x + z * z)), s * 2 * (y * z + w * x), 0,
    s * 2 * (x * z + w * y), s * 2 * (y * z - w * x), s * (1 - 2 * (x * x + y * y)), 0,
    ...position, 1,
  ]);
}

const IDENTITY = pose([0, 0, 0], [1, 0, 0, 0], 1);

// --- shapes: triangles as [position, normal] rows ------------------------------------------------------------------

function cubeShape() {
  const rows = [];
  for (let axis = 0; axis < 3; axis++) {
    for (const side of [-1, 1]) {
      const corner = (u, v) => {
        const p = [0, 0, 0];
        [p[axis], p[(axis + 1) % 3], p[(axis + 2) % 3]] = [side / 2, (u * side) / 2, v / 2];
        const n = [0, 0, 0];
        n[axis] = side;
        return [...p, ...n];
      };
      rows.push(corner(-1, -1), corner(1, -1), corner(1, 1), corner(-1, -1), corner(1, 1), corner(-1, 1));
    }
  }
  return new Float32Array(rows.flat());
}

function cylinderShape(sides = 32) {
  const rows = [];
  const rim = (i, z) => [Math.cos((2 * Math.PI * i) / sides) / 2, Math.sin((2 * Math.PI * i) / sides) / 2, z];
  for (let i = 0; i < sides; i++) {
    const [a, b, c, d] = [rim(i, -0.5), rim(i + 1, -0.5), rim(i + 1, 0.5), rim(i, 0.5)];
    const [n, m] = [normalize([a[0], a[1], 0]), normalize([b[0], b[1], 0])];
    rows.push([...a, ...n], [...b, ...m], [...c, ...m], [...a, ...n], [...c, ...m], [...d, ...n]);
    rows.push([0, 0, 0.5, 0, 0, 1], [...d, 0, 0, 1], [...c, 0, 0, 1]);
    rows.push([0, 0, -0.5, 0, 0, -1], [...b, 0, 0, -1], [...a, 0, 0, -1]);
  }
  return new Float32Array(rows.flat());
}

function sphereShape(rings = 16, sides = 32) {
  const rows = [];
  const at = (i, j) => {
    const [a, b] = [(Math.PI * i) / rings, (2 * Math.PI * j) / sides];
    const n = [Math.sin(a) * Math.cos(b), Math.sin(a) * Math.sin(b), Math.cos(a)];
    return [...n.map((value) => value / 2), ...n];
  };
  for (let i = 0; i < rings; i++) {
    for (let j = 0; j < sides; j++) {
      const [a, b, c, d] = [at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)];
      rows.push(a, b, c, a, c, d);
    }
  }
  return new Float32Array(rows.flat());
}

// --- shaders -------------------------------------------------------------------------------------------------------

const SHADE = `
  uniform highp sampler2DShadow u_shadow;
  uniform mat4 u_light_view;
  uniform vec3 u_light, u_eye, u_sky;

  float lit(vec3 place, vec3 normal) {
    vec4 p = u_light_view * vec4(place + normal * 0.06, 1.0);
    vec3 s = p.xyz * 0.5 + 0.5;
    if (any(lessThan(s, vec3(0.0))) || any(greaterThan(s, vec3(1.0)))) return 1.0;
    s.z -= 0.0006;
    float sum = 0.0, texel = 1.0 / ${SHADOW_SIZE}.0;
    for (int i = 0; i < 4; i++) {
      vec2 offset = vec2(float(i & 1) - 0.5, float(i >> 1) - 0.5) * 1.6 * texel;
      sum += texture(u_shadow, vec3(s.xy + offset, s.z));
    }
    return sum * 0.25;
  }

  // Hemisphere light and a sun.
  vec3 shade(vec3 colour, vec3 place, vec3 normal) {
    vec3 ambient = mix(vec3(0.36, 0.38, 0.44), vec3(0.62, 0.69, 0.8), normal.z * 0.5 + 0.5);
    float sun = max(dot(normal, u_light), 0.0) * lit(place, normal);
    vec3 c = colour * (ambient + vec3(0.9, 0.82, 0.7) * sun);
    return 1.18 * c / (1.0 + 0.4 * c); // bright sides keep their colour
  }

  vec3 fog(vec3 colour, vec3 place) {
    float away = length(place - u_eye);
    return mix(colour, u_sky, (1.0 - exp(-away * away / 2600.0)) * 0.86);
  }
`;

// Instances of one shape. u_pass 0: opaque ones; 1: those that are see-through because they hide the drone.
const SOLID = {
  vertex: `#version 300 es
    layout(location = 0) in vec3 position;
    layout(location = 1) in vec3 normal;
    layout(location = 2) in vec3 offset;
    layout(location = 3) in vec3 scale;
    layout(location = 4) in vec4 colour;
    uniform mat4 u_view, u_model;
    uniform highp int u_pass;
    out vec3 v_place, v_normal, v_local, v_scale;
    out vec4 v_colour;
    void main() {
      vec4 place = u_model * vec4(position * scale + offset, 1.0);
      v_place = place.xyz;
      v_normal = mat3(u_model) * (normal / max(scale, vec3(1e-4)));
      v_local = position;
      v_scale = scale;
      v_colour = colour;
      bool ghost = colour.a < 0.995;
      gl_Position = ghost == (u_pass == 1) ? u_view * place : vec4(2.0, 2.0, 2.0, 1.0);
    }`,
  fragment: `#version 300 es
    precision highp float;
    ${SHADE}
    in vec3 v_place, v_normal, v_local, v_scale;
    in vec4 v_colour;
    uniform bool u_edges;
    uniform highp int u_pass;
    out vec4 colour;
    void main() {
      vec3 normal = normalize(v_normal);
      vec3 base = v_colour.rgb * mix(0.62, 1.0, smoothstep(0.0, 1.6, v_place.z)); // darker where it meets the ground
      vec3 c = shade(base, v_place, normal);
      float edge = 0.0;
      if (u_edges) { // distance to the nearest edge of the face, in pixels
        vec3 inside = (0.5 - abs(v_local)) * v_scale;
        inside += step(0.5, abs(normal)) * 1e3;
        float near = min(min(inside.x, inside.y), inside.z);
        float pixel = max(length(fwidth(v_place)), 1e-4);
        edge = (1.0 - smoothstep(0.6, 1.6, near / pixel)) * (1.0 - smoothstep(0.02, 0.14, pixel));
        c = mix(c, c * 1.5 + 0.05, edge * 0.75);
      }
      c = fog(c, v_place);
      float alpha = u_pass == 1 ? max(v_colour.a, edge * 0.45) : 1.0;
      colour = vec4(c * alpha, alpha);
    }`,
};

const GROUND_PLANE = {
  vertex: `#version 300 es
    layout(location = 0) in vec2 position;
    uniform mat4 u_view;
    out vec3 v_place;
    void main() {
      v_place = vec3(position * 160.0, 0.0);
      gl_Position = u_view * vec4(v_place, 1.0);
    }`,
  fragment: `#version 300 es
    precision highp float;
    ${SHADE}
    in vec3 v_place;
    out vec4 colour;
    float grid(float spacing, float width) {
      vec2 p = v_place.xy / spacing, w = fwidth(p);
      vec2 d = abs(fract(p - 0.5) - 0.5) / max(w, vec2(1e-5));
      float fade = 1.0 - smoothstep(0.12, 0.5, max(w.x, w.y));
      return (1.0 - smoothstep(width - 0.5, width + 0.5, min(d.x, d.y))) * fade;
    }
    void main() {
      float out_of = max(abs(v_place.x), abs(v_place.y)) - ${GROUND}.0;
      float field = 1.0 - smoothstep(-0.02, 0.02, out_of);
      vec3 c = shade(mix(vec3(0.075, 0.095, 0.13), vec3(0.125, 0.155, 0.205), field), v_place, vec3(0.0, 0.0, 1.0));
      c += vec3(0.05, 0.07, 0.1) * grid(1.0, 0.5) * field;
      c += vec3(0.06, 0.085, 0.12) * grid(5.0, 0.8) * mix(0.35, 1.0, field);
      c += vec3(0.1, 0.16, 0.22) * (1.0 - smoothstep(0.0, 1.5, abs(out_of) / max(fwidth(out_of), 1e-4) - 0.5));
      colour = vec4(fog(c, v_place), 1.0);
    }`,
};

// Segments of constant width on the screen. Colours are premultiplied: alpha 0 adds light.
const LINE = {
  vertex: `#version 300 es
    layout(location = 0) in vec2 corner;
    layout(location = 1) in vec3 from;
    layout(location = 2) in vec3 to;
    layout(location = 3) in vec4 from_colour;
    layout(location = 4) in vec4 to_colour;
    layout(location = 5) in float width;
    uniform mat4 u_view;
    uniform vec2 u_size;
    out vec4 v_colour;
    void main() {
      vec4 a = u_view * vec4(from, 1.0), b = u_view * vec4(to, 1.0);
      const float near = 0.06; // cut off what lies behind the camera
      v_colour = mix(from_colour, to_colour, corner.x);
      if (a.w < near && b.w < near) { gl_Position = vec4(2.0, 2.0, 2.0, 1.0); return; }
      if (a.w < near) a = mix(a, b, (near - a.w) / (b.w - a.w));
      if (b.w < near) b = mix(b, a, (near - b.w) / (a.w - b.w));
      vec2 way = (b.xy / b.w - a.xy / a.w) * u_size;
      float size = length(way);
      vec2 side = size > 1e-4 ? vec2(-way.y, way.x) / size : vec2(0.0, 1.0);
      vec4 p = corner.x < 0.5 ? a : b;
      p.xy += side * corner.y * width / u_size * p.w;
      gl_Position = p;
    }`,
  fragment: `#version 300 es
    precision highp float;
    in vec4 v_colour;
    out vec4 colour;
    void main() { colour = v_colour; }`,
};

// Round dots: beam ends (they face the camera), and soft shadows on the ground.
const DOT = {
  vertex: `#version 300 es
    layout(location = 0) in vec2 corner;
    layout(location = 1) in vec4 place; // x y z radius: m on the ground, pixels else
    layout(location = 2) in vec4 tint;
    uniform mat4 u_view;
    uniform vec2 u_size;
    uniform bool u_flat;
    out vec2 v_corner;
    out vec4 v_tint;
    void main() {
      v_corner = corner;
      v_tint = tint;
      gl_Position = u_view * vec4(place.xyz + (u_flat ? vec3(corner * place.w, 0.0) : vec3(0.0)), 1.0);
      if (!u_flat) {
        gl_Position.xy += corner * place.w * 2.0 / u_size * gl_Position.w;
        gl_Position.z -= 0.002 * gl_Position.w;
      }
    }`,
  fragment: `#version 300 es
    precision highp float;
    in vec2 v_corner;
    in vec4 v_tint;
    uniform bool u_flat;
    out vec4 colour;
    void main() {
      float r = length(v_corner);
      colour = v_tint * (1.0 - smoothstep(u_flat ? 0.25 : 0.55, 1.0, r));
    }`,
};

// Translucent bodies that are brighter at their rim: collision radius, goal, rotor discs.
const GLOW = {
  vertex: `#version 300 es
    layout(location = 0) in vec3 position;
    layout(location = 1) in vec3 normal;
    uniform mat4 u_view, u_model;
    out vec3 v_place, v_normal;
    void main() {
      vec4 place = u_model * vec4(position, 1.0);
      v_place = place.xyz;
      v_normal = mat3(u_model) * normal;
      gl_Position = u_view * place;
    }`,
  fragment: `#version 300 es
    precision highp float;
    in vec3 v_place, v_normal;
    uniform vec3 u_eye;
    uniform vec4 u_tint; // colour, strength
    uniform vec2 u_rim;  // inside, at the rim
    out vec4 colour;
    void main() {
      float facing = abs(dot(normalize(v_normal), normalize(u_eye - v_place)));
      float a = mix(u_rim.y, u_rim.x, pow(facing, 0.7)) * u_tint.a;
      colour = vec4(u_tint.rgb * a, a * 0.4);
    }`,
};

const BACKDROP = {
  vertex: `#version 300 es
    layout(location = 0) in vec2 position;
    uniform mat4 u_inverse; // rotation of the camera, scaled by its opening
    uniform vec2 u_shift;
    out vec3 v_way;
    void main() {
      v_way = mat3(u_inverse) * vec3(position - u_shift, -1.0);
      gl_Position = vec4(position, 1.0, 1.0);
    }`,
  fragment: `#version 300 es
    precision highp float;
    in vec3 v_way;
    uniform vec3 u_sky;
    out vec4 colour;
    void main() {
      float up = normalize(v_way).z;
      vec3 c = mix(u_sky, vec3(0.03, 0.042, 0.068), smoothstep(0.0, 0.6, up));
      c += vec3(0.05, 0.075, 0.1) * exp(-abs(up) * 14.0);
      float noise = fract(sin(dot(gl_FragCoord.xy, vec2(12.9898, 78.233))) * 43758.5453); // against banding
      colour = vec4(c + (noise - 0.5) / 255.0, 1.0);
    }`,
};

// --- programs and buffers ------------------------------------------------------------------------------------------

class Program {
  constructor(gl, source) {
    this.gl = gl;
    this.handle = gl.createProgram();
    for (const [type, text] of [[gl.VERTEX_SHADER, source.vertex], [gl.FRAGMENT_SHADER, source.fragment]]) {
      const shader = gl.createShader(type);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(this.handle, shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
    }
    gl.linkProgram(this.handle);
    if (!gl.getProgramParameter(this.handle, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(this.handle));
    this.places = new Map();
  }

  // Use the program with uniforms by name: numbers, vectors, matrices; booleans and `ints` are whole numbers.
  use(uniforms) {
    const gl = this.gl;
    gl.useProgram(this.handle);
    for (const [name, value] of Object.entries(uniforms)) {
      if (!this.places.has(name)) this.places.set(name, gl.getUniformLocation(this.handle, name));
      const place = this.places.get(name);
      if (typeof value === "number" || typeof value === "boolean") gl.uniform1i(place, Number(value));
      else if (value.length === 16) gl.uniformMatrix4fv(place, false, value);
      else gl[`uniform${value.length}fv`](place, value);
    }
    return this;
  }
}

// Instances of a shape: `layout` gives the numbers of each attribute of the shape, then of an instance.
class Batch {
  constructor(gl, shape, shapeLayout, layout) {
    this.gl = gl;
    this.array = gl.createVertexArray();
    gl.bindVertexArray(this.array);
    this.vertices = shape.length / shapeLayout.reduce((a, b) => a + b);
    this.stride = layout.reduce((a, b) => a + b, 0);
    this.attributes(shape, shapeLayout, 0, 0);
    this.buffer = this.attributes(null, layout, shapeLayout.length, 1);
    this.values = new Float32Array(0);
    this.count = 0;
    this.capacity = 0; // bytes in the buffer
  }

  attributes(data, layout, first, divisor) {
    const gl = this.gl;
    const buffer = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    if (data) gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
    const stride = layout.reduce((a, b) => a + b, 0);
    let offset = 0;
    layout.forEach((size, i) => {
      gl.enableVertexAttribArray(first + i);
      gl.vertexAttribPointer(first + i, size, gl.FLOAT, false, 4 * stride, 4 * offset);
      gl.vertexAttribDivisor(first + i, divisor);
      offset += size;
    });
    return buffer;
  }

  clear() {
    this.count = 0;
  }

  push(...row) {
    const end = (this.count + 1) * this.stride;
    if (end > this.values.length) {
      const larger = new Float32Array(Math.max(2 * this.values.length, 64 * this.stride));
      larger.set(this.values);
      this.values = larger;
    }
    this.values.set(row, this.count * this.stride);
    this.count++;
  }

  upload() {
    const gl = this.gl;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffer);
    if (this.capacity < this.values.byteLength) {
      this.capacity = this.values.byteLength;
      gl.bufferData(gl.ARRAY_BUFFER, this.capacity, gl.DYNAMIC_DRAW);
    }
    gl.bufferSubData(gl.ARRAY_BUFFER, 0, this.values, 0, this.count * this.stride);
  }

  draw() {
    if (!this.count) return;
    this.gl.bindVertexArray(this.array);
    this.gl.drawArraysInstanced(this.gl.TRIANGLES, 0, this.vertices, this.count);
  }
}

// --- the scene -----------------------------------------------------------------------------------------------------

class Painter {
  constructor(canvas) {
    const gl = canvas.getContext("webgl2", { antialias: true, alpha: false, powerPreference: "high-performance" });
    if (!gl) throw new Error("this browser has no WebGL2");
    this.gl = gl;
    this.canvas = canvas;
    const program = (source) => new Program(gl, source);
    this.programs = {
      solid: program(SOLID), ground: program(GROUND_PLANE), line: program(LINE), dot: program(DOT),
      glow: program(GLOW), backdrop: program(BACKDROP),
    };
    const body = [3, 3];
    const quad = new Float32Array([-1, -1, 1, -1, 1, 1, -1, -1, 1, 1, -1, 1]);
    const ribbon = new Float32Array([0, -1, 1, -1, 1, 1, 0, -1, 1, 1, 0, 1]);
    const solids = (shape) => new Batch(gl, shape, body, [3, 3, 4]);
    this.boxes = solids(cubeShape());
    this.cuboids = solids(cubeShape());
    this.cylinders = solids(cylinderShape());
    this.droneCubes = solids(cubeShape());
    this.droneCylinders = solids(cylinderShape(20));
    this.sphere = new Batch(gl, sphereShape(), body, []);
    this.disc = new Batch(gl, cylinderShape(), body, []);
    this.plane = new Batch(gl, quad, [2], []);
    for (const single of [this.sphere, this.disc, this.plane]) single.count = 1;
    this.lines = new Batch(gl, ribbon, [2], [3, 3, 4, 4, 1]);
    this.dots = new Batch(gl, quad, [2], [4, 4]);
    this.shadows = new Batch(gl, quad, [2], [4, 4]);
    this.buildDrone();
    this.buildShadowMap();
  }

  // A quadrotor of 0.2 m arms along its own x and y; drawn turned by 45°, front motors light.
  buildDrone() {
    const [dark, grey, front] = [[0.3, 0.33, 0.38], [0.62, 0.66, 0.72], [1.0, 0.5, 0.25]];
    this.rotors = [[0.2, 0], [0, -0.2], [-0.2, 0], [0, 0.2]];
    this.droneCubes.push(0, 0, 0, 0.4, 0.028, 0.022, ...grey, 1);
    this.droneCubes.push(0, 0, 0, 0.028, 0.4, 0.022, ...grey, 1);
    this.droneCylinders.push(0, 0, 0.005, 0.15, 0.15, 0.05, ...dark, 1);
    this.droneCylinders.push(0, 0, 0.038, 0.1, 0.1, 0.03, 0.9, 0.92, 0.95, 1);
    this.rotors.forEach(([x, y], i) => {
      this.droneCylinders.push(x, y, 0.018, 0.045, 0.045, 0.055, ...(i < 2 ? front : dark), 1);
    });
    this.droneCubes.upload();
    this.droneCylinders.upload();
  }

  buildShadowMap() {
    const gl = this.gl;
    this.shadowMap = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, this.shadowMap);
    gl.texStorage2D(gl.TEXTURE_2D, 1, gl.DEPTH_COMPONENT24, SHADOW_SIZE, SHADOW_SIZE);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_COMPARE_MODE, gl.COMPARE_REF_TO_TEXTURE);
    for (const key of ["TEXTURE_MIN_FILTER", "TEXTURE_MAG_FILTER"]) gl.texParameteri(gl.TEXTURE_2D, gl[key], gl.LINEAR);
    for (const key of ["TEXTURE_WRAP_S", "TEXTURE_WRAP_T"]) gl.texParameteri(gl.TEXTURE_2D, gl[key], gl.CLAMP_TO_EDGE);
    this.shadowTarget = gl.createFramebuffer();
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.shadowTarget);
    gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.DEPTH_ATTACHMENT, gl.TEXTURE_2D, this.shadowMap, 0);
    gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    this.lightView = multiply(orthographic(30, 10, 110), lookAt(LIGHT.map((v) => v * 60), [0, 0, 0], [0, 0, 1]));
  }

  // Another flight: its boxes, and the shadows they throw, which never change.
  setFlight(flight) {
    this.flight = flight;
    this.boxes.clear();
    const { boxes } = flight.map;
    for (let i = 0; i < boxes.length; i += 5) {
      const [x0, y0, x1, y1, height] = boxes.subarray(i, i + 5);
      this.boxes.push((x0 + x1) / 2, (y0 + y1) / 2, height / 2, x1 - x0, y1 - y0, height, ...boxColour(height), 1);
    }
    this.boxColours = this.boxes.values.slice();
    this.seeThrough = new Float32Array(boxes.length / 5 + flight.map.count).fill(1);
    this.settled = false;
    this.boxes.upload();

    const gl = this.gl;
    gl.bindTexture(gl.TEXTURE_2D, null); // not read from while it is drawn to
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.shadowTarget);
    gl.viewport(0, 0, SHADOW_SIZE, SHADOW_SIZE);
    gl.enable(gl.DEPTH_TEST);
    gl.depthMask(true);
    gl.clear(gl.DEPTH_BUFFER_BIT);
    this.programs.solid.use({ u_view: this.lightView, u_model: IDENTITY, u_pass: 0, u_edges: false });
    this.boxes.draw();
    gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    gl.bindTexture(gl.TEXTURE_2D, this.shadowMap);
  }

  // Obstacles between camera and drone become see-through, within a fifth of a second; at once after a jump.
  fade(index, hides, seconds, least = SEE_THROUGH) {
    const wanted = hides ? least : 1;
    const u = this.settled ? 1 - Math.exp(-seconds * 9) : 1;
    const now = mix(this.seeThrough[index], wanted, u);
    this.seeThrough[index] = now > 0.99 && !hides ? 1 : now;
    return this.seeThrough[index];
  }

  // Does an upright obstacle stand in the way from the camera to the drone?
  hides(eye, drone, x, y, reach, bottom, top) {
    const [wx, wy] = [drone[0] - eye[0], drone[1] - eye[1]];
    const square = wx * wx + wy * wy;
    const u = square > 1e-6 ? clamp(((x - eye[0]) * wx + (y - eye[1]) * wy) / square, 0, 1) : 1;
    if (Math.hypot(eye[0] + u * wx - x, eye[1] + u * wy - y) > reach + 0.55) return false;
    if (Math.hypot(drone[0] - x, drone[1] - y) > Math.sqrt(square) + 0.2) return false;
    const margin = reach / Math.max(Math.sqrt(square), 0.5);
    const heights = [u - margin, u + margin].map((at) => mix(eye[2], drone[2], clamp(at, 0, 1)));
    return u > 0.02 && u < 0.97 && top > Math.min(...heights) - 0.3 && bottom < Math.max(...heights) + 0.3;
  }

  // Draw the flight at a time. view: { eye, target, up, fov, eyes }. show: { beams, velocity } are drawn or not;
  // { colour } of the outcome; { seconds } since the last frame; { pixels } of the canvas per pixel of the page;
  // { shift } of the picture upward; { burst } of the end, 0 to 1.
  draw(time, state, view, show) {
    const gl = this.gl;
    const { width, height } = this.canvas;
    const size = [width, height];
    const camera = lookAt(view.eye, view.target, view.up);
    this.view = multiply(perspective(view.fov, width / height, 0.05, 300, show.shift), camera);
    const common = {
      u_view: this.view, u_eye: view.eye, u_sky: SKY, u_light: LIGHT, u_light_view: this.lightView, u_shadow: 0,
      u_model: IDENTITY, u_pass: 0, u_edges: true,
    };
    const { solid, ground, line, dot, glow, backdrop } = this.programs;

    this.droneSize = Math.max(DRONE_SIZE, DRONE_SHARE * Math.hypot(...add(view.eye, state.position, -1)));
    this.placeObstacles(time, state, view, show);
    this.placeLines(time, state, view, show);

    gl.viewport(0, 0, width, height);
    gl.enable(gl.DEPTH_TEST);
    gl.enable(gl.CULL_FACE);
    gl.disable(gl.BLEND);
    gl.depthMask(true);
    gl.depthFunc(gl.LEQUAL);
    gl.clear(gl.DEPTH_BUFFER_BIT);

    const open = Math.tan(view.fov / 2);
    const turned = new Float32Array(16); // inverse rotation, first two columns scaled to the corners of the screen
    for (let r = 0; r < 3; r++) {
      const opening = [(open * width) / height, open, 1][r];
      for (let c = 0; c < 3; c++) turned[4 * r + c] = camera[4 * c + r] * opening;
    }
    // What is near comes first: without a GPU most of the time goes into pixels that are painted over.
    if (!view.eyes) this.drawDrone(state, solid, common);
    solid.use(common);
    this.boxes.draw();
    this.cuboids.draw();
    solid.use({ u_edges: false });
    this.cylinders.draw();
    ground.use(common);
    this.plane.draw();
    backdrop.use({ u_inverse: turned, u_sky: SKY, u_shift: [0, show.shift] });
    this.plane.draw();

    gl.enable(gl.BLEND); // colours are premultiplied everywhere
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    gl.depthMask(false);
    dot.use({ u_view: this.view, u_size: size, u_flat: true });
    this.shadows.draw();
    line.use({ u_view: this.view, u_size: size });
    this.lines.draw();
    dot.use({ u_view: this.view, u_size: size, u_flat: false });
    this.dots.draw();
    this.drawGlows(state, view, glow);

    solid.use({ ...common, u_pass: 1 }); // see-through obstacles
    this.boxes.draw();
    this.cuboids.draw();
    solid.use({ u_edges: false });
    this.cylinders.draw();
    this.settled = true;
  }

  // Colours and transparency of boxes, places of moving obstacles, their shadows.
  placeObstacles(time, state, view, show) {
    const { map, hit, length } = this.flight;
    const drone = state.position;
    const struck = hit ? smooth(length - 0.35, length, time) : 0; // the obstacle the flight ends at turns red
    const values = this.boxes.values;
    for (let i = 0; i < this.boxes.count; i++) {
      const at = 10 * i;
      const [x, y, , w, l, h] = values.subarray(at, at + 6);
      const hides = !view.eyes && this.hides(view.eye, drone, x, y, Math.hypot(w, l) / 2, 0, h);
      const red = hit && hit.box === i ? struck : 0;
      for (let c = 0; c < 3; c++) values[at + 6 + c] = mix(this.boxColours[at + 6 + c], show.colour[c], 0.8 * red);
      values[at + 9] = this.fade(i, hides, show.seconds, mix(SEE_THROUGH, 0.5, red));
    }
    this.boxes.upload();

    for (const batch of [this.cuboids, this.cylinders, this.shadows]) batch.clear();
    const told = new Set(state.told);
    const place = [0, 0, 0];
    for (let j = 0; j < map.count; j++) {
      const [x, y, z] = map.moving(j, time, place);
      const [w, h] = [map.width[j], map.height[j]];
      const hides = !view.eyes && this.hides(view.eye, drone, x, y, w / 2, z - h / 2, z + h / 2);
      const red = hit && hit.moving === j ? struck : 0;
      const base = told.has(j) ? PALETTE.told : PALETTE.moving;
      const colour = base.map((value, c) => mix(value, show.colour[c], 0.9 * red));
      const solid = this.fade(this.boxes.count + j, hides, show.seconds, mix(SEE_THROUGH, 0.5, red));
      const floating = h <= 1;
      (floating ? this.cuboids : this.cylinders).push(x, y, z, w, w, h, ...colour, solid);
      this.shadows.push(x, y, 0.02, w * (floating ? 0.8 : 1.1), 0, 0, 0, floating ? 0.35 : 0.5);
    }
    this.shadows.push(drone[0], drone[1], 0.025, 0.5, 0, 0, 0, 0.6);
    for (const batch of [this.cuboids, this.cylinders, this.shadows]) batch.upload();
  }

  segment(from, to, colour, alpha, width, { end = alpha, light = false } = {}) {
    const weight = light ? 0 : 1; // light is added, paint covers
    const a = [colour[0] * alpha, colour[1] * alpha, colour[2] * alpha, alpha * weight];
    const b = [colour[0] * end, colour[1] * end, colour[2] * end, end * weight];
    this.lines.push(...from, ...to, ...a, ...b, width * this.scale);
  }

  ring(centre, radius, colour, alpha, width, sides = 40) {
    const angle = (2 * Math.PI) / sides;
    const at = (i) => add(centre, [Math.cos(angle * i), Math.sin(angle * i), 0], radius);
    for (let i = 0; i < sides; i++) this.segment(at(i), at(i + 1), colour, alpha, width);
  }

  // Everything drawn as lines and dots: trail, markers, beams, velocities, rotor blades.
  placeLines(time, state, view, show) {
    const { flight } = this;
    this.scale = show.pixels; // device pixels per pixel of the page
    this.lines.clear();
    this.dots.clear();
    this.placeTrail(time, state, show);
    this.placeMarkers(time, show);
    const here = state.position;
    if (!view.eyes) {
      this.segment(here, [here[0], here[1], 0.02], [0.8, 0.88, 1], 0.32, 1.2, { end: 0.12, light: true });
      this.ring([here[0], here[1], 0.03], 0.3, [0.8, 0.88, 1], 0.3, 1.2, 24);
    }
    if (show.beams) {
      flight.eachBeam(state, time, (end, reach, hit) => {
        const u = clamp(reach / flight.lidar.range, 0, 1);
        const colour = PALETTE.hit.map((value, c) => mix(value, PALETTE.far[c], smooth(0.1, 0.75, u)));
        if (hit) {
          this.segment(here, end, colour, 0.1, 1.3, { end: 0.5, light: true });
          this.dots.push(...end, mix(4.2, 2.6, u) * this.scale, ...colour, 0.85);
        } else {
          this.segment(here, end, [0.45, 0.6, 0.8], 0.12, 1, { end: 0.0, light: true });
        }
      });
    }
    if (show.velocity) {
      this.placeVelocity(here, state.command, PALETTE.command, 2.2, view.eyes);
      this.placeVelocity(here, state.velocity, PALETTE.flown, 3.4, view.eyes);
    }
    this.lines.upload();
    this.dots.upload();
  }

  placeTrail(time, state, show) {
    const { flight } = this;
    const { position } = flight;
    const at = (k) => position.subarray(3 * k, 3 * k + 3);
    for (let k = 0; k + 1 < flight.samples; k++) {
      if (k < state.sample) this.segment(at(k), at(k + 1), show.colour, 0.95, 3.4);
      else if (k > state.sample) this.segment(at(k), at(k + 1), show.colour, 0.3, 1.8);
      else {
        this.segment(at(k), state.position, show.colour, 0.95, 3.4);
        this.segment(state.position, at(k + 1), show.colour, 0.3, 1.8);
      }
    }
  }

  placeMarkers(time, show) {
    const { start, goal, length, outcome, position, samples } = this.flight;
    const floor = (p, z = 0.03) => [p[0], p[1], z];
    this.ring(floor(start), 0.4, PALETTE.start, 0.8, 2);
    this.segment(floor(start), start, PALETTE.start, 0.5, 1.5);
    const rings = [[0.5, 0.9], [0.9, 0.4], [1.3, 0.18]];
    for (const [radius, alpha] of rings) this.ring(floor(goal), radius, PALETTE.goal, alpha, 2);
    this.segment(floor(goal), floor(goal, 9), PALETTE.goal, 0.5, 5, { end: 0, light: true }); // to be seen from afar
    this.segment(floor(goal), floor(goal, 9), PALETTE.goal, 0.7, 1.6, { end: 0, light: true });

    if (outcome === "success" || time < length - 1e-3) return;
    const end = position.subarray(3 * (samples - 1));
    for (let i = 0; i < 14; i++) { // a burst: directions spread evenly over the sphere
      const z = 1 - (2 * i + 1) / 14;
      const [across, turn] = [Math.sqrt(1 - z * z), 2.39996 * i];
      const way = [across * Math.cos(turn), across * Math.sin(turn), z];
      this.segment(add(end, way, 0.34), add(end, way, 0.34 + 0.5 * show.burst), show.colour, 1, 3, { end: 0.15 });
    }
    this.ring(end, 0.3 + 0.55 * show.burst, show.colour, 0.9, 2.5);
    this.ring(floor(end), 0.3 + 0.9 * show.burst, show.colour, 0.6, 2);
  }

  // An arrow; seen with the drone's own eyes, a dot where it flies to.
  placeVelocity(from, velocity, colour, width, eyes) {
    const speed = Math.hypot(...velocity);
    if (speed < 0.1) return;
    const way = normalize(velocity);
    if (eyes) {
      this.dots.push(...add(from, way, 4), 3 * width * this.scale, ...colour, 1);
      return;
    }
    const tip = add(from, velocity, 0.75);
    this.segment(from, tip, colour, 0.95, width);
    const side = normalize(cross(way, Math.abs(way[2]) > 0.9 ? [1, 0, 0] : [0, 0, 1]));
    const barb = Math.min(0.2, 0.3 * speed);
    for (const sign of [-1, 1]) {
      this.segment(tip, add(add(tip, way, -barb), side, sign * barb * 0.55), colour, 0.95, width);
    }
  }

  dronePose(state) {
    const [w, x, y, z] = state.quaternion;
    const [c, s] = [Math.cos(Math.PI / 8), Math.sin(Math.PI / 8)]; // 45° about its own z
    return pose(state.position, [w * c - z * s, x * c + y * s, y * c - x * s, z * c + w * s], this.droneSize);
  }

  drawDrone(state, solid, common) {
    solid.use({ ...common, u_model: this.dronePose(state), u_edges: false });
    this.droneCubes.draw();
    this.droneCylinders.draw();
  }

  drawGlows(state, view, glow) {
    const { goal, radii } = this.flight;
    const common = { u_view: this.view, u_eye: view.eye };
    const ball = (place, radius, tint, rim) => {
      glow.use({ ...common, u_model: pose(place, [1, 0, 0, 0], 2 * radius), u_tint: tint, u_rim: rim });
      this.sphere.draw();
    };
    ball(goal, radii[1], [...PALETTE.goal, 1], [0.1, 0.55]);
    if (view.eyes) return;
    this.gl.disable(this.gl.CULL_FACE);
    const body = this.dronePose(state);
    this.rotors.forEach(([x, y], i) => {
      const place = transform(body, [x, y, 0.05]);
      const disc = body.slice();
      for (let c = 0; c < 12; c++) disc[c] *= c < 8 ? 0.22 : 0.004;
      disc.set(place.slice(0, 3), 12);
      const tint = i < 2 ? [1, 0.62, 0.4, 1] : [0.75, 0.85, 1, 1];
      glow.use({ ...common, u_model: disc, u_tint: tint, u_rim: [0.2, 0.24] });
      this.disc.draw();
    });
    this.gl.enable(this.gl.CULL_FACE);
    ball(state.position, radii[0], [0.6, 0.8, 1, 1], [0.0, 0.3]);
  }

  // Where a point is on the canvas, in 0 to 1 from the top left; null if behind the camera.
  onScreen(point) {
    const [x, y, , w] = transform(this.view, point);
    return w > 0 ? [0.5 + x / w / 2, 0.5 - y / w / 2] : null;
  }
}

function boxColour(height) {
  const u = clamp((height - 0.8) / 5.0, 0, 1);
  const [from, to, at] = u < 0.5 ? [PALETTE.low, PALETTE.middle, 2 * u] : [PALETTE.middle, PALETTE.high, 2 * u - 1];
  return from.map((value, i) => mix(value, to[i], at));
}
