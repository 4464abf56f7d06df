// What the report and the live page draw alike: the plan in a camera image, and the road from above.
// Poses are [x, y, heading] in the map; a frame holds ego, v, plan [[x, y, heading, speed], ..], dt and agents.
const $ = id => document.getElementById(id);
const VERDICTS = [["OK", "--good"], ["LATE", "--warn"], ["UNSAFE", "--bad"], ["INFEASIBLE", "--odd"]];
const SOURCES = [["PLANNER", "--accent"], ["CARRIED", "--warn"], ["STOP", "--bad"]];
const SOURCE_WORDS = ["planner's own plan", "last good plan, carried on", "stop plan"];
const LEVELS = [["OK", "--good"], ["WARN", "--warn"], ["ERROR", "--bad"], ["STALE", "--stale"]];
const KINDS = [["unknown", "#8a94a0"], ["vehicle", "#4f86d9"], ["pedestrian", "#e8833a"], ["bicycle", "#1fa8a0"], ["static", "#a4815a"]];
const AXES = {x: 0, y: 1};
const RAMP = [[229, 56, 62], [245, 158, 36], [170, 214, 64], [38, 190, 160], [62, 130, 246]];
let car = {length: 5, width: 2, offset: 1.4};  // the page sets its own
let topSpeed = 15;  // m/s at the upper end of the ramp; likewise

// ---------------------------------------------------------------------------------------------------------- small things
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let colours = {};
function readColours() {
  for (const name of ["bg", "panel", "ink", "dim", "faint", "line", "sunk", "accent", "ego", "road", "asphalt", "good", "warn", "bad", "odd", "stale"])
    colours["--" + name] = css("--" + name);
}
function element(tag, parent, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  parent.appendChild(made);
  return made;
}
function addBadge(text, colour) {  // one more of the badges; without a colour a plain one
  const entry = element("span", $("badges"), text, colour ? "badge" : "badge plain");
  if (colour) entry.style.setProperty("--c", `var(${colour})`);
}
function addFigure(value, name) {  // one more of the figures of a plan
  const box = element("div", $("figures"));
  element("b", box, value); element("i", box, name);
}
function addLegend(name, colour, border = "0") {
  const entry = element("span", $("legend"), name);
  entry.style.setProperty("--c", colour); entry.style.setProperty("--b", border);
}
function drawRamp() {  // the scale of speeds
  $("ramp").style.background = `linear-gradient(90deg, ${RAMP.map(c => `rgb(${c})`).join(",")})`;
  for (const v of [0, topSpeed / 2, topSpeed]) element("span", $("rampticks"), v === topSpeed ? `${v} m/s` : String(v));
}
function surface(canvas, height) {  // a context in CSS pixels, sharp on any screen
  if (height) canvas.style.height = height + "px";
  const ratio = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  const w = Math.max(1, Math.round(box.width * ratio)), h = Math.max(1, Math.round(box.height * ratio));
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, box.width, box.height);
  return [g, box.width, box.height];
}
const font = (size, weight) => `${weight || 400} ${size}px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif`;
const number = (value, digits) => value === null || value === undefined ? "–" : value.toFixed(digits);
const milliseconds = value => value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const colourOf = ([, name]) => colours[name];
const kindOf = kind => KINDS[kind] || KINDS[0];
const roundSpeed = top => [2, 3, 5, 8, 10, 15, 20, 30, 40, 60, 90].find(v => v >= top) || Math.ceil(top);
function rampColour(speed, alpha) {
  const at = clamp(speed / topSpeed, 0, 1) * (RAMP.length - 1), i = Math.min(RAMP.length - 2, Math.floor(at)), share = at - i;
  const c = RAMP[i].map((v, k) => Math.round(v + share * (RAMP[i + 1][k] - v)));
  return `rgba(${c[0]},${c[1]},${c[2]},${alpha})`;
}
// into(pose, x, y) brings a map point into the pose's own frame, outOf takes it back
function into(pose, x, y) {
  const c = Math.cos(pose[2]), s = Math.sin(pose[2]), dx = x - pose[0], dy = y - pose[1];
  return [c * dx + s * dy, -s * dx + c * dy];
}
function outOf(pose, x, y) {
  const c = Math.cos(pose[2]), s = Math.sin(pose[2]);
  return [pose[0] + c * x - s * y, pose[1] + s * x + c * y];
}
const corners = (pose, length, width) =>
  [[1, 1], [-1, 1], [-1, -1], [1, -1]].map(([a, b]) => outOf(pose, a * length / 2, b * width / 2));
// left and right edge of what the car sweeps, in the map: from its rear axle now to its front bumper at the plan's end;
// height is above the plane of the car, 0 where the plan has none
function swept(frame) {
  const half = car.width / 2, nose = car.offset + car.length / 2;
  const poses = [[frame.ego[0], frame.ego[1], frame.ego[2], frame.v, 0, 0]];
  frame.plan.forEach((p, i) => poses.push([p[0], p[1], p[2], p[3], (i + 1) * frame.dt, p[4] || 0]));
  const last = poses[poses.length - 1], tip = outOf(last, nose, 0);
  if (nose > 0) poses.push([tip[0], tip[1], last[2], last[3], null, last[5]]);
  return poses.map(p => ({left: outOf(p, 0, half), right: outOf(p, 0, -half), speed: p[3], time: p[4], height: p[5]}));
}
const wholeSecond = time => time !== null && time > 0 && Math.abs(time - Math.round(time)) < 1e-3;

// -------------------------------------------------------------------------------------------------------------- cameras
function distortion(d) {  // what the lens does to a point of the ideal image, as OpenCV's plumb_bob and rational models
  if (!d.length) return (x, y) => [x, y];
  const [k1, k2, p1, p2, k3 = 0, k4 = 0, k5 = 0, k6 = 0] = d;
  const radial = q => (1 + q * (k1 + q * (k2 + q * k3))) / (1 + q * (k4 + q * (k5 + q * k6)));
  let limit = 0.02;  // far outside the image the polynomial turns back and would fold things into it: held from there on
  while (limit < 9 && Math.sqrt(limit + 0.02) * radial(limit + 0.02) > Math.sqrt(limit) * radial(limit)) limit += 0.02;
  return (x, y) => {
    const q = x * x + y * y;
    if (q > limit) { const f = radial(limit); return [x * f, y * f]; }
    const f = radial(q);
    return [x * f + 2 * p1 * x * y + p2 * (q + 2 * x * x), y * f + p1 * (q + 2 * y * y) + 2 * p2 * x * y];
  };
}
function clipNear(points, near) {  // polygon of camera points (x right, y down, z forward) cut at z = near
  const kept = [];
  points.forEach((a, i) => {
    const b = points[(i + 1) % points.length];
    if (a[2] >= near) kept.push(a);
    if ((a[2] >= near) !== (b[2] >= near)) {
      const s = (near - a[2]) / (b[2] - a[2]);
      kept.push([a[0] + s * (b[0] - a[0]), a[1] + s * (b[1] - a[1]), near]);
    }
  });
  return kept;
}
// the plan as a ribbon on the road of an image w px wide; cam holds width, k, distortion, camera_from_ego and ego
function paintPlanInImage(g, w, cam, frame, boxes) {
  const ribbon = swept(frame), k = cam.k, m = cam.camera_from_ego, scale = w / cam.width;
  const lens = ([x, y], z = 0) => {  // map point, z above the plane of the car -> camera axes
    const [ex, ey] = into(cam.ego, x, y);
    return [0, 1, 2].map(r => m[4 * r] * ex + m[4 * r + 1] * ey + m[4 * r + 2] * z + m[4 * r + 3]);
  };
  const bend = distortion(cam.distortion);
  const onto = p => { const [x, y] = bend(p[0] / p[2], p[1] / p[2]); return [(k[0] * x + k[2]) * scale, (k[4] * y + k[5]) * scale]; };
  const fill = (outline, style) => {
    const cut = clipNear(outline, 0.4);
    if (cut.length < 3) return;
    g.beginPath();
    cut.forEach((p, i) => { const [u, v] = onto(p); i ? g.lineTo(u, v) : g.moveTo(u, v); });
    g.closePath();
    g.fillStyle = style;
    g.fill();
  };
  const segment = (a, b, style, width) => {
    const cut = clipNear([a, b], 0.4);
    if (cut.length < 2) return;
    const [u0, v0] = onto(cut[0]), [u1, v1] = onto(cut[1]);
    g.strokeStyle = style; g.lineWidth = width;
    g.beginPath(); g.moveTo(u0, v0); g.lineTo(u1, v1); g.stroke();
  };
  const edges = ribbon.map(p => [lens(p.left, p.height), lens(p.right, p.height)]);
  for (let i = 1; i < edges.length; i++)
    fill([edges[i - 1][0], edges[i][0], edges[i][1], edges[i - 1][1]], rampColour(ribbon[i].speed, ribbon[i].time === null ? 0.25 : 0.5));
  g.lineJoin = "round";
  for (const side of [0, 1])
    for (let i = 1; i < edges.length; i++) segment(edges[i - 1][side], edges[i][side], rampColour(ribbon[i].speed, 0.95), 1.6);
  if (boxes)
    for (const [x, y, heading, length, width, kind] of frame.agents) {
      if (Math.hypot(x - frame.ego[0], y - frame.ego[1]) > 60) continue;
      const around = corners([x, y, heading], length, width).map(corner => lens(corner));
      around.forEach((corner, i) => segment(corner, around[(i + 1) % 4], kindOf(kind)[1], 1.4));
    }
  ribbon.forEach((p, i) => { if (wholeSecond(p.time)) segment(edges[i][0], edges[i][1], "rgba(255,255,255,.85)", 1.2); });
}

// ----------------------------------------------------------------------------------------------------------- from above
// a pen draws map points: `eye` is the pose that looks up the page, `centre` where it stands, `scale` px for a metre
function penAt(g, w, h, eye, centre, scale) {
  const at = (x, y) => { const [a, l] = into(eye, x, y); return [centre[0] - l * scale, centre[1] - a * scale]; };
  const trace = (points, closed) => {
    g.beginPath();
    points.forEach((p, i) => { const [u, v] = at(p[0], p[1]); i ? g.lineTo(u, v) : g.moveTo(u, v); });
    if (closed) g.closePath();
  };
  const line = (points, style, width, dash) => {
    if (points.length < 2) return;
    g.strokeStyle = style; g.lineWidth = width; g.setLineDash(dash || []);
    trace(points); g.stroke(); g.setLineDash([]);
  };
  const step = [5, 10, 20, 50, 100, 200, 500].find(s => s * scale > 55) || 1000;
  return {g, w, h, eye, centre, scale, at, trace, line, step};
}
function paintGround(pen, rings) {  // what may be driven on, and a grid that is fixed to the map, so that motion shows
  const {g, w, h, eye, centre, scale, at, step} = pen;
  g.fillStyle = colours["--road"]; g.fillRect(0, 0, w, h);
  if (rings.length) {
    g.fillStyle = g.strokeStyle = colours["--asphalt"]; g.lineWidth = 1;
    for (const ring of rings) { pen.trace(ring, true); g.fill(); g.stroke(); }
  }
  const reach = Math.hypot(w, h) / scale + step;
  const looked = outOf(eye, (centre[1] - h / 2) / scale, (centre[0] - w / 2) / scale);
  g.strokeStyle = colours["--line"]; g.lineWidth = 1; g.globalAlpha = rings.length ? 0.4 : 0.75;
  for (const axis of [0, 1])
    for (let v = Math.floor((looked[axis] - reach) / step) * step; v < looked[axis] + reach; v += step) {
      const a = axis ? at(looked[0] - reach, v) : at(v, looked[1] - reach), b = axis ? at(looked[0] + reach, v) : at(v, looked[1] + reach);
      g.beginPath(); g.moveTo(...a); g.lineTo(...b); g.stroke();
    }
  g.globalAlpha = 1;
  g.lineCap = "round"; g.lineJoin = "round";
}
function paintRoute(pen, route) {
  pen.g.globalAlpha = 0.16; pen.line(route, colours["--accent"], Math.max(3, 2.6 * pen.scale)); pen.g.globalAlpha = 1;
  pen.line(route, colours["--accent"], 1.2, [7, 6]);
}
function paintRibbon(pen, frame) {
  const ribbon = swept(frame);
  for (let i = 1; i < ribbon.length; i++) {
    pen.trace([ribbon[i - 1].left, ribbon[i].left, ribbon[i].right, ribbon[i - 1].right], true);
    pen.g.fillStyle = rampColour(ribbon[i].speed, ribbon[i].time === null ? 0.18 : 0.42); pen.g.fill();
  }
}
function paintAgents(pen, agents) {
  const g = pen.g;
  for (const [x, y, heading, length, width, kind] of agents) {
    const colour = kindOf(kind)[1], pose = [x, y, heading];
    pen.trace(corners(pose, length, width), true);
    g.globalAlpha = 0.28; g.fillStyle = colour; g.fill(); g.globalAlpha = 1;
    g.strokeStyle = colour; g.lineWidth = 1.3; g.stroke();
    pen.line([pose, outOf(pose, length / 2, 0)], colour, 1.3);
  }
}
function paintPlan(pen, frame) {
  const {g, at} = pen, middle = [[...frame.ego, frame.v], ...frame.plan];
  for (let i = 1; i < middle.length; i++) pen.line([middle[i - 1], middle[i]], rampColour(middle[i][3], 1), 3);
  g.font = font(11, 600); g.textBaseline = "middle"; g.textAlign = "left";
  let lastLabel = null;
  frame.plan.forEach((p, i) => {  // a dot for every whole second
    const t = (i + 1) * frame.dt;
    if (!wholeSecond(t)) return;
    const [u, v] = at(p[0], p[1]);
    g.beginPath(); g.arc(u, v, 3.6, 0, 7); g.fillStyle = colours["--panel"]; g.fill(); g.strokeStyle = rampColour(p[3], 1); g.lineWidth = 2; g.stroke();
    if (lastLabel && Math.hypot(u - lastLabel[0], v - lastLabel[1]) < 17) return;
    const [lu, lv] = at(...outOf(p, 0, -car.width / 2));
    g.strokeStyle = colours["--road"]; g.lineWidth = 4; g.strokeText(`${Math.round(t)} s`, lu + 6, lv);
    g.fillStyle = colours["--ink"]; g.fillText(`${Math.round(t)} s`, lu + 6, lv);
    lastLabel = [u, v];
  });
}
// the draft [[x, y], ..] in the frame of `ego` as a dashed line; rings where edit rounds moved a waypoint, with its way
function paintDraft(pen, ego, draft, corrections) {
  const g = pen.g, after = draft.map(p => [...p]), place = p => outOf(ego, p[0], p[1]);
  for (const [, waypoint, axis, , value] of corrections) if (axis in AXES) after[waypoint - 1][AXES[axis]] = value;
  pen.line([ego, ...draft.map(place)], colours["--odd"], 2, [6, 5]);
  draft.forEach((p, i) => {
    const [u, v] = pen.at(...place(p));
    g.beginPath(); g.arc(u, v, 2.4, 0, 7); g.fillStyle = colours["--odd"]; g.fill();
    if (p[0] === after[i][0] && p[1] === after[i][1]) return;
    pen.line([place(p), place(after[i])], colours["--warn"], 1.6);
    g.beginPath(); g.arc(...pen.at(...place(after[i])), 6, 0, 7); g.strokeStyle = colours["--warn"]; g.lineWidth = 2; g.stroke();
  });
}
const DRAFT_LEGEND = [["draft", "var(--odd)"], ["waypoint moved by AutoEdit", "transparent", "2px solid var(--warn)"]];
function correctionTable(box, draft, corrections) {  // of one plan; nothing for a plan without tokens
  box.replaceChildren();
  if (!draft) return;
  element("h2", box, "Corrections of the draft");
  if (!corrections.length) { element("p", box, "The edit rounds changed no token.", "none"); return; }
  const table = element("table", box, undefined, "corrections"), head = element("tr", table);
  for (const name of ["round", "waypoint", "draft", "after", "prob. before", "after"]) element("th", head, name);
  for (const [round, waypoint, axis, before, after, low, high] of corrections) {
    const row = element("tr", table), unit = axis === "heading" ? "rad" : "m";
    for (const text of [round, `${axis} ${waypoint}`, `${before.toFixed(1)} ${unit}`, `${after.toFixed(1)} ${unit}`, `${(100 * low).toFixed(0)} %`, `${(100 * high).toFixed(0)} %`])
      element("td", row, String(text));
  }
}
function paintCar(pen, ego) {
  const g = pen.g;
  pen.trace([[1, 1], [-1, 1], [-1, -1], [1, -1]].map(([a, b]) => outOf(ego, car.offset + a * car.length / 2, b * car.width / 2)), true);
  g.fillStyle = colours["--ego"]; g.globalAlpha = 0.9; g.fill(); g.globalAlpha = 1;
  pen.trace([[0.36, 0], [0.16, 0.34], [0.16, -0.34]].map(([a, b]) => outOf(ego, car.offset + a * car.length, b * car.width)), true);
  g.fillStyle = colours["--road"]; g.fill();
}
function paintScale(pen) {
  const {g, h, step} = pen, bar = step * pen.scale;
  g.strokeStyle = colours["--dim"]; g.lineWidth = 1.5; g.lineCap = "butt";
  g.beginPath(); g.moveTo(14, h - 20); g.lineTo(14, h - 15); g.lineTo(14 + bar, h - 15); g.lineTo(14 + bar, h - 20); g.stroke();
  g.fillStyle = colours["--dim"]; g.font = font(11.5); g.textBaseline = "middle"; g.textAlign = "left"; g.fillText(`${step} m`, 18, h - 25);
}
