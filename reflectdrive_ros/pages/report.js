"use strict";
__DRAWING__
const data = JSON.parse(document.getElementById("data").textContent);
const frames = data.frames, sum = data.summary, world = data.world;
let now = 0, playing = false, boxes = false;

// the page's own measures
car = data.vehicle;
topSpeed = roundSpeed(Math.max(1, ...frames.map(f => Math.max(0, ...f.plan.map(p => p[3])))));
const longest = Math.max(0, ...frames.map(f => f.plan.length ? Math.hypot(f.plan[f.plan.length - 1][0] - f.ego[0], f.plan[f.plan.length - 1][1] - f.ego[1]) : 0));
const fastest = Math.max(1, ...frames.map(f => Math.max(f.v, ...f.plan.map(p => p[3])))) * 1.08;
const farthest = Math.max(0, ...frames.map(f => f.plan.length * f.dt));
function routeAt(frame) {  // the one that led the way then
  let found = data.routes.length ? data.routes[0][1] : [];
  for (const [t, points] of data.routes) if (t <= frame.t + 1e-3) found = points;
  return found;
}

// --------------------------------------------------------------------------------------------------------------- header
function header() {
  const title = $("title");
  title.textContent = world ? "reflectdrive demo " : "reflectdrive replay ";
  element("span", title, `· ${data.planner} · ${data.bag}`);
  $("origin").textContent = data.origin;
  const tiles = $("tiles"), total = sum.plans, add = (name, big, unit, small) => {
    const tile = element("div", tiles, undefined, "tile");
    element("i", tile, name);
    const b = element("b", tile, big);
    if (unit) element("small", b, unit);
    element("u", tile, small);
  };
  const hz = sum.rates.plans_hz;
  add("Plans", String(total), "", total ? `${number(sum.duration_s, 1)} s at ${number(hz, 1)} Hz` : "none");
  if (!total) return;
  const others = VERDICTS.slice(1).filter(([v]) => sum.verdicts[v]).map(([v]) => `${sum.verdicts[v]} ${v.toLowerCase()}`);
  if (sum.candidates) {
    const count = Object.entries(sum.candidates.verdicts).filter(([, n]) => n).map(([name, n]) => `${n} ${name}`);
    add("Candidates", String(sum.candidates.candidates), "", count.join(", "));
  }
  add("Verdict OK", (100 * sum.verdicts.OK / total).toFixed(sum.verdicts.OK === total ? 0 : 1), "%", others.join(", ") || "every plan");
  if (!sum.candidates) add("Sent as planned", String(sum.sources.PLANNER), "", `${sum.sources.CARRIED} carried, ${sum.sources.STOP} stops`);
  const stage = data.main_stage, latency = sum.latency_ms[stage];
  if (latency) add(`Latency, ${stage}`, milliseconds(latency.p50), "ms p50", `p99 ${milliseconds(latency.p99)}, max ${milliseconds(latency.max)} ms`);
  if (world) { driveTiles(add); return; }
  add("ADE, 4 s", number(sum.ade_m, 2), sum.ade_m === null ? "" : "m", `to driven path, ${sum.plans_compared} plans`);
  add("FDE, at 4 s", number(sum.fde_m, 2), sum.fde_m === null ? "" : "m", "end point to driven path");
  add("Sideways shift", number(sum.max_lateral_shift_m, 2), sum.max_lateral_shift_m === null ? "" : "m", "most between two plans");
}

function driveTiles(add) {
  const d = sum.world;
  add("Driven", number(d.distance_m, 0), "m", `in ${number(d.duration_s, 0)} s; the speed limits allow ${number(d.limit_distance_m, 0)} m`);
  add("Standing", number(d.standing_s, 1), "s", d.reference_progress_m ? `progress ${number(100 * d.plan_progress_m / d.reference_progress_m, 0)} % of the reference planner's in this traffic` : "");
  add("Driving score", d.score_mean === null ? "–" : number(100 * d.score_mean, 1), "", "PDM score of the plans, mean");
  add("Collisions", String(d.collisions), "", d.collisions ? `${d.collisions_at_fault} at fault` : "none");
  add("Off the road", number(d.off_road_s, 1), "s", d.off_road_s ? "some of the car was outside" : "never");
}

// -------------------------------------------------------------------------------------------------------------- cameras
const cameraCanvases = [];
function cameras() {
  const strip = $("cameras");
  if (!data.images.length) { strip.hidden = $("boxes").hidden = true; return; }
  for (const cam of data.images[0].cameras) {
    const figure = element("figure", strip), canvas = element("canvas", figure);
    canvas.style.aspectRatio = `${cam.width} / ${cam.height}`;
    canvas.setAttribute("aria-label", "Camera " + cam.name + " with the plan drawn in");
    cameraCanvases.push([canvas, element("figcaption", figure, cam.name)]);
  }
}
const images = new Map();
function imageOf(cam) {
  if (!images.has(cam)) {
    if (images.size > 60) images.delete(images.keys().next().value);
    const made = new Image();
    made.onload = () => drawCameras();
    made.src = "data:image/jpeg;base64," + cam.jpeg;
    images.set(cam, made);
  }
  return images.get(cam);
}
function drawCameras() {
  if (!frames.length || !cameraCanvases.length) return;
  const frame = frames[now], set = data.images[frame.image];
  cameraCanvases.forEach(([canvas, caption], index) => {
    const cam = set && set.cameras[index];
    const [g, w, h] = surface(canvas);
    if (!cam) { caption.textContent = "no image"; return; }
    const ms = Math.round(1000 * (frame.t - cam.t));
    caption.textContent = `${cam.name} · ${ms ? `${Math.abs(ms)} ms ${ms > 0 ? "before" : "after"}` : "at"} the plan's pose`;
    const image = imageOf(cam);
    if (!image.complete || !image.naturalWidth) return;
    g.drawImage(image, 0, 0, w, h);
    paintPlanInImage(g, w, cam, frame, boxes);
  });
}

// ------------------------------------------------------------------------------------------------------------ bird's eye
const bev = $("bev").querySelector("canvas");
const view = {follow: true, scale: 0, dx: 0, dy: 0, x: 0, y: 0};
function resetView() {
  const box = bev.getBoundingClientRect();
  view.dx = view.dy = 0;
  if (view.follow) { view.scale = box.height / clamp(longest * 1.25 + 12, 45, 190); return; }
  const xs = data.driven.p.map(p => p[0]).concat(frames.map(f => f.ego[0])), ys = data.driven.p.map(p => p[1]).concat(frames.map(f => f.ego[1]));
  if (!xs.length) { xs.push(0); ys.push(0); }
  const bounds = [xs, ys].map(v => [v.reduce((a, b) => Math.min(a, b)), v.reduce((a, b) => Math.max(a, b))]);
  view.x = (bounds[0][0] + bounds[0][1]) / 2; view.y = (bounds[1][0] + bounds[1][1]) / 2;
  view.scale = clamp(0.8 * Math.min(box.width / (bounds[0][1] - bounds[0][0] + 25), box.height / (bounds[1][1] - bounds[1][0] + 25)), 0.2, 30);
}
function drawBev() {
  const [g, w, h] = surface(bev);
  const frame = frames[now];
  if (!frame) return;
  if (!view.scale) resetView();
  const centre = view.follow ? [w / 2 + view.dx, h * 0.76 + view.dy] : [w / 2 + view.dx, h / 2 + view.dy];
  const eye = view.follow ? frame.ego : [view.x, view.y, Math.PI / 2];
  const pen = penAt(g, w, h, eye, centre, view.scale);
  paintGround(pen, data.road);
  paintRoute(pen, routeAt(frame));
  const split = data.driven.t.findIndex(t => t > frame.t);
  const past = split < 0 ? data.driven.p : data.driven.p.slice(0, split), future = split < 0 ? [] : data.driven.p.slice(Math.max(0, split - 1));
  pen.line(past, colours["--faint"], 2);
  const before = frames[now - 1];
  if (before) pen.line([before.ego, ...before.plan], colours["--dim"], 1.2, [2, 5]);
  paintRibbon(pen, frame);
  paintAgents(pen, frame.agents);
  pen.line(future, colours["--ink"], 1.6, [1, 5]);
  for (const other of frame.others || []) pen.line([frame.ego, ...other.map(p => outOf(frame.ego, p[0], p[1]))], colours["--bad"], 2, [6, 5]);
  paintPlan(pen, frame);
  if (frame.draft) paintDraft(pen, frame.ego, frame.draft, frame.corrections);
  paintCar(pen, frame.ego);
  paintScale(pen);
}
let drag = null;
bev.addEventListener("pointerdown", e => { drag = [e.clientX, e.clientY]; bev.setPointerCapture(e.pointerId); });
bev.addEventListener("pointermove", e => {
  if (!drag) return;
  view.dx += e.clientX - drag[0]; view.dy += e.clientY - drag[1]; drag = [e.clientX, e.clientY]; drawBev();
});
for (const end of ["pointerup", "pointercancel"]) bev.addEventListener(end, () => { drag = null; });
bev.addEventListener("wheel", e => {
  e.preventDefault();
  const box = bev.getBoundingClientRect(), factor = Math.exp(-e.deltaY * 0.0014), scale = clamp(view.scale * factor, 0.1, 120);
  const cx = box.width / 2 + view.dx, cy = box.height * (view.follow ? 0.76 : 0.5) + view.dy, real = scale / view.scale;
  view.dx += (1 - real) * (e.clientX - box.left - cx); view.dy += (1 - real) * (e.clientY - box.top - cy);
  view.scale = scale; drawBev();
}, {passive: false});
function toggleFollow() { view.follow = !view.follow; $("follow").textContent = view.follow ? "Map view" : "Ego view"; resetView(); drawBev(); }
function toggleBoxes() { boxes = !boxes; $("boxes").setAttribute("aria-pressed", boxes); drawCameras(); }
$("boxes").onclick = toggleBoxes;
$("follow").onclick = toggleFollow;
$("reset").onclick = () => { resetView(); drawBev(); };
bev.addEventListener("dblclick", () => { resetView(); drawBev(); });

function legend() {
  const seen = new Set(frames.flatMap(f => f.agents.map(a => a[5]))), box = $("legend");
  if (data.road.length) addLegend("road", "var(--asphalt)", "1px solid var(--line)");
  if (data.routes.length) addLegend("route", "color-mix(in srgb, var(--accent) 25%, transparent)", "1px dashed var(--accent)");
  if (data.driven.p.length) addLegend("driven path, dotted what follows", "var(--faint)");
  if (frames.some(f => f.others)) addLegend("candidate, not published", "var(--bad)");
  if (frames.some(f => f.draft)) { DRAFT_LEGEND.forEach(entry => addLegend(...entry)); addLegend("plan, coloured by speed", `rgb(${RAMP[3]})`); }
  KINDS.forEach(([name, colour], kind) => { if (seen.has(kind)) addLegend(name, colour + "55", "1px solid " + colour); });
  if (!box.children.length) box.hidden = true;
  drawRamp();
}

// ---------------------------------------------------------------------------------------------------------- side panel
function drawSide() {
  const f = frames[now];
  $("badges").replaceChildren();
  addBadge(...VERDICTS[f.verdict]);
  addBadge(!sum.candidates ? SOURCE_WORDS[f.source] : f.verdict ? "repaired candidate" : "candidate as it came", SOURCES[f.source][1]);
  addBadge(f.step);
  if (f.planner && f.planner !== data.planner) addBadge(f.planner);
  const asItCame = sum.candidates && f.verdict && f.reason ? "The candidate as it came: " : "";
  $("reason").textContent = asItCame + f.reason || (f.verdict === 0 ? "The plan passed every check." : "");
  const last = f.plan[f.plan.length - 1], poses = [f.ego, ...f.plan];
  let length = 0;
  for (let i = 1; i < poses.length; i++) length += Math.hypot(poses[i][0] - poses[i - 1][0], poses[i][1] - poses[i - 1][1]);
  $("figures").replaceChildren();
  addFigure(number(f.v, 1), "m/s now");
  addFigure(last ? number(last[3], 1) : "–", "m/s at its end");
  addFigure(number(length, 1), "m long");
  addFigure(number(f.plan.length * f.dt, 1), "s ahead");
  correctionTable($("corrections"), f.draft, f.corrections);
  const stages = $("stages");
  stages.replaceChildren();
  for (const [stage, latency] of Object.entries(sum.latency_ms)) {
    const value = f.ms[stage], full = Math.max(...Object.values(sum.latency_ms).map(l => l.max)) || 1;
    element("span", stages, stage);
    const bar = element("div", stages), fill = element("i", bar), mark = element("u", bar);
    fill.style.width = 100 * (value || 0) / full + "%";
    mark.style.left = `calc(${100 * latency.p99 / full}% - 1px)`; mark.title = "p99";
    element("span", stages, value === undefined ? "–" : milliseconds(value) + " ms");
  }
  drawSpeeds();
}
function drawSpeeds() {
  const [g, w, h] = surface($("speeds")), f = frames[now];
  if (!f || h < 40) return;
  const t0 = frames[0].t, t1 = frames[frames.length - 1].t + Math.min(farthest, 8), top = fastest;
  const u = t => 30 + (w - 38) * (t - t0) / Math.max(t1 - t0, 0.1), v = s => h - 20 - (h - 28) * s / top;
  g.font = font(11); g.fillStyle = colours["--dim"]; g.strokeStyle = colours["--line"]; g.lineWidth = 1; g.textBaseline = "middle";
  const step = [0.5, 1, 2, 5, 10, 20].find(s => top / s <= 5) || 50;
  g.textAlign = "right";
  for (let s = 0; s <= top; s += step) { g.beginPath(); g.moveTo(30, v(s)); g.lineTo(w - 8, v(s)); g.stroke(); g.fillText(String(s), 24, v(s)); }
  g.textAlign = "center";
  const tick = [1, 2, 5, 10, 20, 60, 120].find(s => (t1 - t0) / s <= 9) || 300;
  for (let t = Math.ceil(t0 / tick) * tick; t <= t1; t += tick) g.fillText(`${t} s`, u(t), h - 8);
  const curve = (points, style, width) => {
    g.strokeStyle = style; g.lineWidth = width; g.lineJoin = "round"; g.beginPath();
    points.forEach(([t, s], i) => i ? g.lineTo(u(t), v(s)) : g.moveTo(u(t), v(s))); g.stroke();
  };
  g.save(); g.beginPath(); g.rect(30, 0, w - 38, h - 18); g.clip();
  curve(frames.map(q => [q.t, q.v]), colours["--faint"], 2);
  const planned = [[f.t, f.v], ...f.plan.map((p, i) => [f.t + (i + 1) * f.dt, p[3]])];
  for (let i = 1; i < planned.length; i++) curve([planned[i - 1], planned[i]], rampColour(planned[i][1], 1), 3);
  g.restore();
  g.beginPath(); g.arc(u(f.t), v(f.v), 4, 0, 7); g.fillStyle = colours["--ink"]; g.fill();
}

// ------------------------------------------------------------------------------------------------------------ timelines
const line = $("timeline").querySelector("canvas");
// statuses are called "reflectdrive: odometry" and so on: what they all begin with says nothing here
const common = (/^[^:]*: /.exec(data.statuses[0] || "") || [""])[0].length && data.statuses.every(name => name.startsWith(data.statuses[0].split(": ")[0] + ": "))
  ? data.statuses[0].indexOf(": ") + 2 : 0;
const rows = [["verdict", f => [f.verdict, VERDICTS[f.verdict][0] + (f.reason ? ": " + f.reason : "")], VERDICTS],
  ["plan sent", f => [f.source, SOURCES[f.source][0]], SOURCES],
  ...data.statuses.map((name, row) => [name.slice(common), f => f.diagnostics[row] || null, LEVELS])];
const KINDS_OF_EVENT = {collision: "--bad", off_road: "--odd", red_light: "--bad", stuck: "--warn", end_of_route: "--accent"};
const eventColour = event => colours[KINDS_OF_EVENT[event.kind] || "--warn"];
const ROW = 21, LABEL = 190, EDGE = 14;
const endOf = i => i + 1 < frames.length ? frames[i + 1].t : frames[i].t + (i ? frames[i].t - frames[i - 1].t : 0.1);
const span = () => [frames[0].t, endOf(frames.length - 1)];
function drawTimeline() {
  const height = rows.length * ROW + 24, [g, w] = surface(line, height), [t0, t1] = span();
  const label = Math.min(LABEL, w * 0.34), u = t => label + (w - label - EDGE) * (t - t0) / Math.max(t1 - t0, 1e-6);
  g.textBaseline = "middle"; g.font = font(12);
  rows.forEach(([name, get, table], row) => {
    const y = row * ROW;
    g.fillStyle = colours["--dim"]; g.textAlign = "left"; g.font = font(12, row < 2 ? 600 : 400);
    let text = name;
    while (text.length > 4 && g.measureText(text).width > label - 12) text = text.slice(0, -2).trimEnd() + "…";
    g.fillText(text, 0, y + ROW / 2);
    g.fillStyle = colours["--sunk"]; g.fillRect(label, y + 3, w - label - EDGE, ROW - 6);
    for (let i = 0, next; i < frames.length; i = next) {  // what stays the same is one bar, without seams
      const entry = get(frames[i]);
      for (next = i + 1; next < frames.length; next++) {
        const other = get(frames[next]);
        if ((entry && entry[0]) !== (other && other[0])) break;
      }
      if (!entry) continue;
      g.fillStyle = colourOf(table[entry[0]] || table[table.length - 1]);
      const x = u(frames[i].t);
      g.fillRect(x, y + 3, Math.max(1, u(endOf(next - 1)) - x), ROW - 6);
    }
  });
  g.fillStyle = colours["--dim"]; g.font = font(11); g.textAlign = "center";
  const tick = [0.5, 1, 2, 5, 10, 20, 60, 120].find(s => (t1 - t0) / s <= 14) || 300;
  for (let t = Math.ceil(t0 / tick) * tick; t <= t1; t += tick) g.fillText(`${t} s`, u(t), height - 9);
  for (const event of world ? world.events : []) flag(g, u(event.t), 0, rows.length * ROW, eventColour(event));
  const x = u(frames[now].t);
  g.strokeStyle = colours["--ink"]; g.lineWidth = 2; g.beginPath(); g.moveTo(x, 0); g.lineTo(x, rows.length * ROW); g.stroke();
}
function flag(g, x, top, bottom, colour) {
  g.strokeStyle = g.fillStyle = colour; g.lineWidth = 1.5;
  g.beginPath(); g.moveTo(x, top); g.lineTo(x, bottom); g.stroke();
  g.beginPath(); g.moveTo(x, top); g.lineTo(x + 8, top + 4); g.lineTo(x, top + 8); g.fill();
}
function underPointer(e) {
  const box = line.getBoundingClientRect(), [t0, t1] = span(), label = Math.min(LABEL, box.width * 0.34);
  const t = t0 + (t1 - t0) * (e.clientX - box.left - label) / (box.width - label - EDGE);
  let i = frames.findIndex((f, k) => t < endOf(k));
  if (i < 0) i = frames.length - 1;
  return {frame: i, row: Math.floor((e.clientY - box.top) / ROW), inside: e.clientX - box.left >= label};
}
line.addEventListener("pointerdown", e => { const hit = underPointer(e); if (hit.inside) { pause(); seek(hit.frame); } });
line.addEventListener("pointermove", e => {
  const hit = underPointer(e), row = rows[hit.row], tip = $("tip");
  if (e.buttons && hit.inside) seek(hit.frame);
  const entry = row && row[1](frames[hit.frame]);
  tip.hidden = !row;
  if (!row) return;
  const time = hit.inside && entry ? ` · ${frames[hit.frame].t.toFixed(2)} s · ${entry[1]}` : "";
  tip.textContent = row[0] + time;
  tip.style.left = Math.min(e.clientX + 14, window.innerWidth - tip.offsetWidth - 12) + "px";
  tip.style.top = Math.min(e.clientY + 16, window.innerHeight - tip.offsetHeight - 8) + "px";
});
line.addEventListener("pointerleave", () => { $("tip").hidden = true; });
function keys() {
  const add = (text, colour) => element("span", $("keys"), text).style.setProperty("--c", `var(${colour})`);
  VERDICTS.forEach(([name, colour]) => add(name, colour));
  SOURCES.slice(0, 1).forEach(([name, colour]) => add(name, colour));
  add("CARRIED, WARN", "--warn"); add("STOP, ERROR", "--bad"); add("STALE", "--stale");
}
function drawStrip() {
  const [g, w, h] = surface($("strip"), 7);
  frames.forEach((f, i) => {
    g.fillStyle = colourOf(f.verdict === 0 ? SOURCES[f.source][0] === "PLANNER" ? VERDICTS[0] : SOURCES[f.source] : VERDICTS[f.verdict]);
    g.fillRect(w * i / frames.length, 0, w / frames.length + 0.5, h);
  });
}

// ---------------------------------------------------------------------------------- score, events and film of a world
function candidates() {
  $("candidates").hidden = !data.candidates.length;
  for (const cells of data.candidates) {
    const row = element("tr", $("candidatetable"));
    for (const cell of cells) element("td", row, cell);
  }
}
const scoreChart = $("drive").querySelector("canvas");
const SCORE_LEFT = 34, SCORE_RIGHT = 20;  // room for the labels at both ends
const timeOnChart = (w, t) => { const [t0, t1] = span(); return SCORE_LEFT + (w - SCORE_LEFT - SCORE_RIGHT) * (t - t0) / Math.max(t1 - t0, 1e-6); };
const nearest = t => frames.reduce((best, f, i) => Math.abs(f.t - t) < Math.abs(frames[best].t - t) ? i : best, 0);
function drive() {
  if (!world) return;
  $("drive").hidden = false;
  for (const event of world.events) {
    const entry = element("li", $("events"));
    entry.style.setProperty("--c", `var(${KINDS_OF_EVENT[event.kind] || "--warn"})`);
    element("b", entry, `${number(event.t, 1)} s`);
    entry.append(event.text);
    entry.onclick = () => go(nearest(event.t));
  }
  if (!world.events.length) element("li", $("events"), "nothing hit, nothing run over, no light missed").style.setProperty("--c", "var(--good)");
  for (const [name, value] of world.table) {
    const row = element("tr", $("drivetable"));
    element("td", row, name); element("td", row, value);
  }
  scoreChart.addEventListener("pointerdown", e => {
    const box = scoreChart.getBoundingClientRect(), [t0, t1] = span();
    go(nearest(t0 + (t1 - t0) * (e.clientX - box.left - SCORE_LEFT) / (box.width - SCORE_LEFT - SCORE_RIGHT)));
  });
}
function drawScore() {
  if (!world) return;
  const [g, w, h] = surface(scoreChart, 190), top = 12, base = h - 20, v = s => base - (base - top) * s;
  g.font = font(11); g.textBaseline = "middle"; g.textAlign = "right"; g.lineWidth = 1;
  for (const s of [0, 0.25, 0.5, 0.75, 1]) {
    g.strokeStyle = colours["--line"]; g.beginPath(); g.moveTo(SCORE_LEFT, v(s)); g.lineTo(w - SCORE_RIGHT, v(s)); g.stroke();
    g.fillStyle = colours["--dim"]; g.fillText(String(100 * s), SCORE_LEFT - 6, v(s));
  }
  const [t0, t1] = span(), tick = [1, 2, 5, 10, 20, 60, 120].find(s => (t1 - t0) / s <= 14) || 300;
  g.textAlign = "center";
  for (let t = Math.ceil(t0 / tick) * tick; t <= t1; t += tick) g.fillText(`${t} s`, timeOnChart(w, t), h - 8);
  const points = world.scores.map(([t, s]) => [timeOnChart(w, t), v(s)]);
  if (points.length) {
    g.beginPath(); g.moveTo(points[0][0], base); points.forEach(p => g.lineTo(...p)); g.lineTo(points[points.length - 1][0], base);
    g.fillStyle = colours["--accent"]; g.globalAlpha = 0.13; g.fill(); g.globalAlpha = 1;
    g.beginPath(); points.forEach((p, i) => i ? g.lineTo(...p) : g.moveTo(...p));
    g.strokeStyle = colours["--accent"]; g.lineWidth = 2; g.lineJoin = "round"; g.stroke();
  }
  for (const event of world.events) flag(g, timeOnChart(w, event.t), 2, base, eventColour(event));
  const x = timeOnChart(w, frames[now].t);
  g.strokeStyle = colours["--ink"]; g.lineWidth = 2; g.beginPath(); g.moveTo(x, top); g.lineTo(x, base); g.stroke();
}
const film = [];
function filmStrip() {  // stills of the whole drive, each with the plan of its moment
  if (!world || !data.images.length) return;
  $("film").hidden = false;
  const seen = frames.map((f, i) => i).filter(i => frames[i].image !== null), count = Math.min(8, seen.length);
  for (let k = 0; k < count; k++) {
    const i = seen[Math.round(k * (seen.length - 1) / Math.max(1, count - 1))], frame = frames[i];
    const cams = data.images[frame.image].cameras, cam = cams.find(c => c.name === "front") || cams[Math.floor(cams.length / 2)];
    const figure = element("figure", $("film").querySelector(".film")), canvas = element("canvas", figure), still = new Image();
    canvas.style.aspectRatio = `${cam.width} / ${cam.height}`;
    element("figcaption", figure, `${number(frame.t, 0)} s · ${number(frame.v, 1)} m/s`);
    figure.onclick = () => go(i);
    still.onload = drawFilm;
    still.src = "data:image/jpeg;base64," + cam.jpeg;
    film.push([canvas, still, cam, frame]);
  }
}
function drawFilm() {
  for (const [canvas, still, cam, frame] of film) {
    if (!still.complete || !still.naturalWidth) continue;
    const [g, w, h] = surface(canvas);
    g.drawImage(still, 0, 0, w, h);
    paintPlanInImage(g, w, cam, frame, false);
  }
}

// ----------------------------------------------------------------------------------------------------------- histograms
const histogramCanvases = [];
function histograms() {
  for (const [stage, latency] of Object.entries(sum.latency_ms)) {
    const figure = element("figure", $("histograms")), caption = element("figcaption", figure);
    element("b", caption, stage);
    element("span", caption, `p50 ${milliseconds(latency.p50)} · p99 ${milliseconds(latency.p99)} ms`);
    histogramCanvases.push([element("canvas", figure), latency, frames.map(f => f.ms[stage]).filter(v => v !== undefined)]);
  }
}
function drawHistograms() {
  for (const [canvas, latency, values] of histogramCanvases) {
    const [g, w, h] = surface(canvas, 96), top = latency.max * 1.04 || 1, bins = 36, counts = new Array(bins).fill(0);
    for (const v of values) counts[Math.min(bins - 1, Math.floor(v / top * bins))]++;
    const most = Math.max(...counts), base = h - 17, u = v => v / top * w;
    g.fillStyle = colours["--accent"];
    counts.forEach((n, i) => { if (n) { const height = Math.max(2, (base - 6) * n / most); g.fillRect(i * w / bins + 0.5, base - height, w / bins - 1, height); } });
    g.strokeStyle = colours["--line"]; g.lineWidth = 1; g.beginPath(); g.moveTo(0, base + 0.5); g.lineTo(w, base + 0.5); g.stroke();
    for (const [value, name] of [[latency.p50, "--ink"], [latency.p99, "--bad"]]) {
      g.strokeStyle = colours[name]; g.lineWidth = 1.5; g.setLineDash([4, 3]);
      g.beginPath(); g.moveTo(u(value), 0); g.lineTo(u(value), base); g.stroke(); g.setLineDash([]);
    }
    g.fillStyle = colours["--dim"]; g.font = font(11); g.textBaseline = "alphabetic";
    g.textAlign = "left"; g.fillText("0", 0, h - 3);
    g.textAlign = "right"; g.fillText(`${milliseconds(latency.max)} ms`, w, h - 3);
  }
}

// ------------------------------------------------------------------------------------------------------------ transport
function seek(i) {
  now = clamp(i, 0, frames.length - 1);
  $("slider").value = now;
  const clock = $("clock"), f = frames[now];
  clock.textContent = `${f.t.toFixed(2)} s`;
  element("small", clock, `plan ${now + 1} of ${frames.length} · ${f.clock}`);
  drawCameras(); drawBev(); drawSide(); drawTimeline(); drawScore();
  const next = frames[now + 1], set = next && data.images[next.image];
  if (set) set.cameras.forEach(imageOf);
}
let began = 0, from = 0;
function tick(stamp) {
  if (!playing) return;
  const t = from + (stamp - began) / 1000 * Number($("rate").value);
  let i = now;
  while (i + 1 < frames.length && frames[i + 1].t <= t) i++;
  if (i !== now) seek(i);
  if (i === frames.length - 1) { pause(); return; }
  requestAnimationFrame(tick);
}
function play() {
  if (now === frames.length - 1) seek(0);
  playing = true; $("play").innerHTML = "&#10074;&#10074;"; began = performance.now(); from = frames[now].t;
  requestAnimationFrame(tick);
}
function pause() { playing = false; $("play").innerHTML = "&#9654;"; }
function go(i) { pause(); seek(i); }
$("play").onclick = () => playing ? pause() : play();
$("rate").onchange = () => { if (playing) { began = performance.now(); from = frames[now].t; } };
$("slider").oninput = e => go(Number(e.target.value));
window.addEventListener("keydown", e => {
  if (!frames.length || e.ctrlKey || e.metaKey || e.altKey || e.target.tagName === "SELECT") return;
  const step = e.shiftKey ? 10 : 1;
  const acts = {" ": () => playing ? pause() : play(), ArrowLeft: () => go(now - step), ArrowRight: () => go(now + step), Home: () => go(0),
    End: () => go(frames.length - 1), m: toggleFollow, b: toggleBoxes, r: () => { resetView(); drawBev(); }};
  const act = acts[e.key.length === 1 ? e.key.toLowerCase() : e.key];
  if (act) { e.preventDefault(); act(); }
});
function redraw() { readColours(); if (!frames.length) return; seek(now); drawStrip(); drawHistograms(); drawFilm(); }
function planOfAddress() {  // report.html#plan=12 is the twelfth plan
  const match = /^#plan=(\d+)$/.exec(location.hash);
  return match ? clamp(Number(match[1]) - 1, 0, frames.length - 1) : null;
}
window.addEventListener("resize", redraw);
window.addEventListener("hashchange", () => {
  const plan = frames.length ? planOfAddress() : null;
  if (plan !== null) go(plan);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

readColours();
header();
candidates();
$("numbers").textContent = JSON.stringify(sum, null, 2);
if (frames.length) {
  $("slider").max = frames.length - 1;
  cameras(); legend(); keys(); histograms(); drive(); filmStrip();
  if (!Object.keys(sum.latency_ms).length) $("histograms").parentElement.hidden = true;
  now = planOfAddress() || 0;
  redraw();
} else {
  $("empty").hidden = false; $("replay").hidden = true; $("transport").hidden = true; $("details").open = true;
  $("why").textContent = "The recording gave the planner nothing that it could start from; the numbers below say what came in.";
}
