// Points of a map on a canvas. Names come from strangers: they become text, never HTML.
// World: x and y from 0 to 1, y upwards. Screen: CSS pixels of the canvas. screen = world * scale + shift.

const at = (id) => document.getElementById(id);
const data = JSON.parse(at("data").textContent);
const n = data.labels.length, count = (number) => number.toLocaleString("en");
const wrong = data.predicted === null ? null : data.predicted.map((k, i) => k !== data.labels[i]);
const X = Float64Array.from(data.xy, (one) => one[0] / data.places);
const Y = Float64Array.from(data.xy, (one) => 1 - one[1] / data.places);
const canvas = at("canvas"), pen = canvas.getContext("2d");
const NEAR = 18, MOST_ZOOM = 400, EDGE = 24;  // pixels; times the whole; pixels
const RIGHT = "#7f8a99", WRONG = "#d6453a";
const view = { scale: 1, x: 0, y: 0, whole: 1, width: 0, height: 0 };
let chosen = -1, pointed = -1, colour = "label", pressed = null, waiting = false;
let shown = new Uint8Array(n).fill(1);  // 1: in its colour, 0: faint, or not at all

// --- what is drawn ---

const classOf = (i) => (colour === "prediction" ? data.predicted[i] : data.labels[i]);
const colourOf = (group) => (colour === "error" ? [RIGHT, WRONG][group] : data.colours[group]);
const groupOf = (i) => (colour === "error" ? Number(wrong[i]) : classOf(i));
const screenX = (i) => X[i] * view.scale + view.x;
const screenY = (i) => Y[i] * view.scale + view.y;
const seen = (i) => shown[i] === 1;

/** Points by colour, so that each colour is one path. */
let groups = new Map();
function sort() {
  const words = at("search").value.trim().toLowerCase(), only = at("only").checked;
  const named = data.classes.map((name) => name.toLowerCase());
  const exact = named.indexOf(words);
  const wanted = named.map((name, k) => (exact >= 0 ? k === exact : name.includes(words)));
  groups = new Map();
  let left = 0;
  for (let i = 0; i < n; i++) {
    const found = !words || wanted[data.labels[i]] || (data.predicted !== null && wanted[data.predicted[i]]);
    shown[i] = Number(found && !(only && !wrong[i]));
    left += shown[i];
    const group = shown[i] ? groupOf(i) : -1;
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(i);
  }
  at("shown").textContent = left === n ? `${count(n)} images` : `${count(left)} of ${count(n)} images`;
  draw();
}

function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; paint(); });
}

function paint() {
  const ratio = devicePixelRatio || 1, zoom = view.scale / view.whole;
  const radius = Math.min(9, Math.max(1.8, Math.sqrt(view.width * view.height / n) / 8) * Math.sqrt(Math.min(zoom, 30)));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, view.width, view.height);
  const only = at("only").checked;
  const order = [...groups.keys()].sort((a, b) => a - b);  // the faint first, errors last
  for (const group of order) {
    if (group === -1 && only) continue;
    pen.fillStyle = group === -1 ? RIGHT : colourOf(group);
    pen.globalAlpha = group === -1 ? 0.13 : 0.85;
    pen.beginPath();
    for (const i of groups.get(group)) {
      const x = screenX(i), y = screenY(i);
      if (x < -radius || y < -radius || x > view.width + radius || y > view.height + radius) continue;
      pen.moveTo(x + radius, y);
      pen.arc(x, y, radius, 0, 2 * Math.PI);
    }
    pen.fill();
  }
  pen.globalAlpha = 1;
  for (const i of new Set([pointed, chosen])) {
    if (i < 0) continue;
    pen.beginPath();
    pen.arc(screenX(i), screenY(i), radius + 4, 0, 2 * Math.PI);
    pen.lineWidth = 5;
    pen.strokeStyle = getComputedStyle(canvas).backgroundColor;
    pen.stroke();
    pen.lineWidth = 2.5;
    pen.strokeStyle = getComputedStyle(canvas).color;
    pen.stroke();
  }
}

// --- small pictures: sheets are opened when one of their pictures is looked at ---

const opened = new Map();
function sheet(number) {
  if (!opened.has(number)) {
    opened.set(number, new Promise((done, failed) => {
      const image = new Image();
      image.onload = () => done(image);
      image.onerror = failed;
      image.src = data.sheets[number];
    }));
  }
  return opened.get(number);
}

async function picture(target, i, size, still) {
  if (!data.side) { target.hidden = true; return; }
  const each = data.across * data.across, place = i % each;
  const image = await sheet(Math.floor(i / each));
  if (!still()) return;  // another one was pointed at meanwhile
  const from = [(place % data.across) * data.side, Math.floor(place / data.across) * data.side];
  target.width = target.height = size;
  target.hidden = false;
  const brush = target.getContext("2d");
  brush.imageSmoothingQuality = "high";
  brush.drawImage(image, ...from, data.side, data.side, 0, 0, size, size);
}

// --- what is said of an image ---

function fact(name, words, bad = false) {
  const term = document.createElement("dt"), value = document.createElement("dd"), inside = document.createElement("bdi");
  term.textContent = name;
  inside.textContent = words;
  value.append(inside);
  value.classList.toggle("wrong", bad);
  return [term, value];
}

function describe() {
  const i = chosen >= 0 ? chosen : pointed;
  if (i < 0) return;
  const rows = fact("Label", data.classes[data.labels[i]]);
  if (wrong !== null) rows.push(...fact("Predicted", data.classes[data.predicted[i]], wrong[i]));
  rows.push(...fact("Image", data.keys[i]));
  at("facts").replaceChildren(...rows);
  at("picture").setAttribute("aria-label", data.keys[i]);
  picture(at("picture"), i, 176, () => i === (chosen >= 0 ? chosen : pointed));
}

function point(i) {
  if (i === pointed) return;
  pointed = i;
  const tip = at("tip");
  tip.hidden = i < 0;
  if (i >= 0) {
    const label = data.classes[data.labels[i]];
    at("tip-words").textContent = wrong !== null && wrong[i] ? `${label}, predicted ${data.classes[data.predicted[i]]}` : label;
    tip.classList.toggle("wrong", wrong !== null && wrong[i]);
    picture(at("tip-picture"), i, 112, () => i === pointed).then(place);
    place();
  }
  describe();
  draw();
}

function place() {
  if (pointed < 0) return;
  const tip = at("tip"), x = screenX(pointed), y = screenY(pointed);
  const left = x + 16 + tip.offsetWidth > view.width ? x - 16 - tip.offsetWidth : x + 16;
  const top = Math.min(view.height - tip.offsetHeight - 4, Math.max(4, y - tip.offsetHeight / 2));
  tip.style.transform = `translate(${Math.max(4, left)}px, ${top}px)`;
}

function choose(i) {
  chosen = i;
  describe();
  draw();
}

function nearest(x, y, within) {
  let best = -1, least = within * within;
  for (let i = 0; i < n; i++) {
    if (!seen(i)) continue;
    const d = (screenX(i) - x) ** 2 + (screenY(i) - y) ** 2;
    if (d < least) { least = d; best = i; }
  }
  return best;
}

// --- moving and zooming ---

function resize() {
  const before = [view.width, view.height], ratio = devicePixelRatio || 1;
  view.width = canvas.clientWidth;
  view.height = canvas.clientHeight;
  canvas.width = Math.round(view.width * ratio);
  canvas.height = Math.round(view.height * ratio);
  if (before[0] === 0 || view.scale === view.whole) whole();
  else {
    view.x += (view.width - before[0]) / 2;
    view.y += (view.height - before[1]) / 2;
  }
  draw();
}

function whole() {
  const left = X.reduce((a, b) => Math.min(a, b), 1), right = X.reduce((a, b) => Math.max(a, b), 0);
  const top = Y.reduce((a, b) => Math.min(a, b), 1), bottom = Y.reduce((a, b) => Math.max(a, b), 0);
  const across = Math.max(right - left, 1e-6), down = Math.max(bottom - top, 1e-6);
  view.whole = Math.max(1, Math.min((view.width - 2 * EDGE) / across, (view.height - 2 * EDGE) / down));
  view.scale = view.whole;
  view.x = view.width / 2 - view.scale * (left + right) / 2;
  view.y = view.height / 2 - view.scale * (top + bottom) / 2;
  place();
  draw();
}

function zoom(by, x = view.width / 2, y = view.height / 2) {
  const scale = Math.min(MOST_ZOOM * view.whole, Math.max(view.whole / 2, view.scale * by));
  view.x = x - (x - view.x) * scale / view.scale;
  view.y = y - (y - view.y) * scale / view.scale;
  view.scale = scale;
  place();
  draw();
}

function move(dx, dy) {
  view.x += dx;
  view.y += dy;
  place();
  draw();
}

const spot = (event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
const fingers = new Map();
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, spot(event));
  pressed = fingers.size === 1 ? { spot: spot(event), moved: false } : null;
});
canvas.addEventListener("pointermove", (event) => {
  const [x, y] = spot(event), before = fingers.get(event.pointerId);
  if (before === undefined) {
    point(nearest(x, y, NEAR));
    return;
  }
  fingers.set(event.pointerId, [x, y]);
  if (fingers.size === 2) {
    const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, one]) => one);
    const length = (a) => Math.max(1, Math.hypot(a[0] - other[0], a[1] - other[1]));
    zoom(length([x, y]) / length(before), (x + other[0]) / 2, (y + other[1]) / 2);
    move((x - before[0]) / 2, (y - before[1]) / 2);
  } else if (pressed && (pressed.moved || Math.hypot(x - pressed.spot[0], y - pressed.spot[1]) > 5)) {
    if (!pressed.moved) canvas.classList.add("moving");
    pressed.moved = true;
    move(x - before[0], y - before[1]);
  }
});
for (const kind of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(kind, (event) => {
    const [x, y] = spot(event);
    if (kind === "pointerup" && pressed && !pressed.moved) {
      const i = nearest(x, y, NEAR + 6 * Number(event.pointerType !== "mouse"));
      point(i);
      choose(i === chosen ? -1 : i);
    }
    fingers.delete(event.pointerId);
    canvas.classList.remove("moving");
    pressed = null;
  });
}
canvas.addEventListener("pointerleave", () => { if (!fingers.size) point(-1); });
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();  // the page does not scroll
  const lines = event.deltaMode === 1 ? 20 : 1;
  zoom(Math.exp(-0.002 * Math.max(-400, Math.min(400, event.deltaY * lines))), ...spot(event));
}, { passive: false });

// --- keys: the next image in a direction ---

const WAYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
function step([right, down]) {
  if (chosen < 0) {
    choose(nearest(view.width / 2, view.height / 2, Infinity));
  } else {
    let best = -1, least = Infinity;
    for (let i = 0; i < n; i++) {
      const dx = X[i] - X[chosen], dy = Y[i] - Y[chosen], along = dx * right + dy * down;
      if (!seen(i) || i === chosen || along <= 0) continue;
      const aside = Math.abs(dx * down) + Math.abs(dy * right);
      const cost = along + 3 * aside;
      if (aside <= 2 * along && cost < least) { least = cost; best = i; }
    }
    if (best >= 0) choose(best);
  }
  if (chosen < 0) return;
  const x = screenX(chosen), y = screenY(chosen);
  const inside = (value, size) => Math.min(size - EDGE, Math.max(EDGE, value));
  move(inside(x, view.width) - x, inside(y, view.height) - y);
  point(chosen);
}
canvas.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const centre = chosen >= 0 ? [screenX(chosen), screenY(chosen)] : [];
  if (event.key in WAYS) step(WAYS[event.key]);
  else if (event.key === "+" || event.key === "=") zoom(1.4, ...centre);
  else if (event.key === "-") zoom(1 / 1.4, ...centre);
  else if (event.key === "0") whole();
  else if (event.key === "Escape") { choose(-1); point(-1); }
  else return;
  event.preventDefault();
});

// --- controls ---

function legend() {
  const rows = [];
  const entry = (group, name, number, search) => {
    const button = document.createElement("button"), dot = document.createElement("i");
    const words = document.createElement("bdi"), total = document.createElement("span"), row = document.createElement("li");
    button.type = "button";
    dot.style.background = colourOf(group);
    words.textContent = name;
    total.textContent = count(number);
    button.append(dot, words, total);
    if (search) {
      button.setAttribute("aria-pressed", String(at("search").value === name));
      button.addEventListener("click", () => {
        at("search").value = at("search").value === name ? "" : name;
        sort();
        legend();
      });
    } else button.disabled = true;
    row.append(button);
    rows.push(row);
  };
  if (colour === "error") {
    const errors = wrong.filter(Boolean).length;
    entry(1, "predicted as another class", errors, false);
    entry(0, "predicted as labelled", n - errors, false);
  } else {
    const totals = new Array(data.classes.length).fill(0);
    for (let i = 0; i < n; i++) totals[classOf(i)]++;
    data.classes.forEach((name, k) => { if (totals[k]) entry(k, name, totals[k], true); });
  }
  const before = document.activeElement?.closest?.("#legend li");
  const place = before ? [...at("legend").children].indexOf(before) : -1;
  at("legend").replaceChildren(...rows);
  if (place >= 0) rows[place]?.firstChild.focus();
}

function option(list, value) {
  const one = document.createElement("option");
  one.value = value;
  one.textContent = value;
  list.append(one);
}
for (const name of data.classes) option(at("names"), name);
if (wrong !== null) for (const name of ["prediction", "error"]) option(at("colour"), name);
else at("only-label").hidden = true;
at("colour").addEventListener("change", () => {
  colour = at("colour").value;
  sort();
  legend();
});
at("search").addEventListener("input", () => { sort(); legend(); });
at("only").addEventListener("change", sort);
at("in").addEventListener("click", () => zoom(1.6));
at("out").addEventListener("click", () => zoom(1 / 1.6));
at("whole").addEventListener("click", whole);
new ResizeObserver(resize).observe(canvas);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
sort();
legend();
