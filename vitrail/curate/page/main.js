// What is shown, by the filters, and what keys and buttons do.

const DECIDED = {
  all: ["All decisions", () => true],
  open: ["To review", (one) => !one],
  keep: ["Kept", (one) => one?.action === "keep"],
  relabel: ["Relabelled", (one) => one?.action === "relabel"],
  drop: ["Dropped", (one) => one?.action === "drop"],
};
const SINGLE = "vitrail single keys";
let shown = [], place = 0, pair = null;  // images by the filters; the one on the stage; two classes that were chosen

function matches(image, { kind, name, decided }) {
  if (kind && !image.findings.some((one) => one.kind === kind)) return false;
  if (pair && !(pair.includes(image.label) && pair.includes(image.suggested))) return false;
  if (name && image.label !== name && image.suggested !== name) return false;
  return DECIDED[decided][1](decisions.get(image.index));
}

/** Filter again; stay at the image that was shown, or else at its place. */
function filter(index = shown[place]?.index) {
  const name = pair ? "" : findings.classes[at("class").value] ?? "";
  const wanted = { kind: at("kind").value, name, decided: at("decided").value };
  shown = [...images.values()].filter((image) => matches(image, wanted));
  const again = shown.findIndex((image) => image.index === index);
  place = Math.max(0, again >= 0 ? again : Math.min(place, shown.length - 1));
  draw();
}

/** Filter by other choices: stay at the image, or begin with the first that is to be reviewed. */
function filterAnew(index = shown[place]?.index) {
  filter(index);
  if (shown[place]?.index !== index) {
    place = Math.max(0, shown.findIndex((one) => !decisions.has(one.index)));
    draw();
  }
}

function draw() {
  at("stage").hidden = at("strip").hidden = !shown.length;
  at("nothing").hidden = shown.length > 0;
  if (shown.length) showImage(shown[place], place, shown);
  const done = [...images.keys()].filter((index) => decisions.has(index)), of = (action) =>
    done.filter((index) => decisions.get(index).action === action).length;
  at("progress").max = Math.max(1, images.size);
  at("progress").value = done.length;
  const kept = !keeps && unsaved ? " This browser does not keep them: save before you close the page." : "";
  const since = unsaved ? ` Not saved as a file.${kept}` : "";
  at("state").replaceChildren(element("strong", {}, `${count(done.length)} of ${count(images.size)} reviewed`),
    ` ${count(of("keep"))} kept, ${count(of("relabel"))} relabelled, ${count(of("drop"))} dropped.${since}`);
}

function describe() {
  if (!shown.length) return "No image is left here.";
  const image = shown[place], like = image.suggested === null ? "" : `, looks like ${readable(image.suggested)}`;
  const reasons = image.findings.map((one) => one.reason.replace(/\.?$/, ".")).join(" ");
  return visible(`${place + 1} of ${shown.length}: labelled ${readable(image.label)}${like}. ${reasons} ${verdict(image.index)}.`);
}

function go(number, words = "") {
  if (!shown.length) return;
  place = Math.max(0, Math.min(shown.length - 1, number));
  draw();
  announce(`${words} ${describe()}`.trim());
}

/** Decide about the image on the stage, and go to the next that is to be reviewed. */
function act(action, label = null) {
  if (!shown.length) return;
  const image = shown[place];
  decide([[image.index, { key: image.key, index: image.index, action, label }]]);
  const words = `${verdict(image.index)}.`;
  const later = [...shown.slice(place + 1), ...shown.slice(0, place)].find((one) => !decisions.has(one.index));
  if (later) {
    filter(later.index);
    announce(`${words} ${describe()}`);
  } else {
    filter();
    announce(`${words} All images shown are reviewed.`);
  }
}

function takeBack() {
  const changed = undo();
  if (!changed.length) return;
  filter(changed[0]);
  if (shown[place]?.index !== changed[0]) {  // hidden by the filters
    at("kind").value = at("class").value = "";
    pair = null;
    at("decided").value = "all";
    listClasses();
    filter(changed[0]);
  }
  announce(`Undone. ${describe()}`);
}

function choose() {
  if (!shown.length) return;
  const image = shown[place];
  askForClass([image.suggested, ...labelsAround(image)].filter((name) => name !== null), (name) => {
    if (name === image.label) act("keep");
    else act("relabel", name);
  });
}

const DEEDS = {
  keep: () => act("keep"),
  relabel: () => { if (shown.length && shown[place].suggested !== null) act("relabel", shown[place].suggested); },
  choose,
  drop: () => act("drop"),
  undo: takeBack,
  next: () => go(place + 1),
  previous: () => go(place - 1),
  save: () => {
    save();
    draw();
    announce(`${count(decisions.size)} decisions saved as decisions.json.`);
  },
  load: () => at("file").click(),
  help: () => at("keys").showModal(),
};
const KEYS = {
  k: "keep", r: "relabel", c: "choose", d: "drop", u: "undo", n: "next", p: "previous", s: "save", "?": "help",
  ArrowRight: "next", ArrowLeft: "previous",
};

addEventListener("keydown", (event) => {
  const deed = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  // The field of a dialog that was just closed keeps the focus until the page is drawn again.
  const typing = !event.target.closest?.("dialog") && event.target.closest?.("input, select, textarea, pre, .strip");
  const letter = event.key.length === 1;
  if (!deed || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if ((typing && !(letter && typing.matches("pre, .strip"))) || (letter && !at("single-keys").checked)) return;
  event.preventDefault();
  if (!event.repeat || deed === "next" || deed === "previous") DEEDS[deed]();
});

function options(select, entries) {
  const value = select.value;
  select.replaceChildren(...entries.map(([name, words]) => element("option", { value: name }, words)));
  select.value = entries.some(([name]) => name === value) ? value : entries[0][0];
}

function listClasses() {
  const counts = new Map();
  for (const { label, suggested } of images.values()) for (const name of new Set([label, suggested])) counts.set(name, (counts.get(name) ?? 0) + 1);
  const there = findings.classes.map((name, i) => [String(i), `${visible(readable(name))} (${count(counts.get(name) ?? 0)})`])
    .filter((_, i) => counts.has(findings.classes[i]));
  const both = pair ? [["pair", pair.map((name) => visible(readable(name))).join(" and ")]] : [];
  options(at("class"), [["", "All classes"], ...both, ...there]);
  if (pair) at("class").value = "pair";
}

function listKinds() {
  const counts = new Map();
  for (const { kind } of findings.findings) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  options(at("kind"), [["", `Everything (${count(images.size)})`], ...[...counts].map(([kind, n]) => [kind, `${KINDS[kind]} (${count(n)})`])]);
  options(at("decided"), Object.entries(DECIDED).map(([name, [words]]) => [name, words]));
}

function choosePair(classes) {
  pair = classes;
  at("kind").value = "";
  at("decided").value = "all";
  listClasses();
  filterAnew(-1);
  at("stage").focus();
  at("review").scrollIntoView();
  announce(shown.length ? describe() : "Nothing was found in this pair.");
}

/** A word as a shell reads it. */
const quoted = (word) => (/^[\w./:-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

function showCommands() {
  const { data } = findings, earlier = /([?&]decisions=[^&]*)/;
  const where = earlier.test(data) ? data.replace(earlier, "$1,decisions.json") :
    `${data}${data.includes("?") ? "&" : "?"}decisions=decisions.json`;
  at("commands").textContent = [
    `vitrail data apply decisions.json --data ${quoted(data)} --out corrected.csv`,
    `vitrail finetune --model MODEL --data ${quoted(where)} --out run`,
  ].map(visible).join("\n");
}

function start() {
  restore();
  at("review").hidden = !images.size;
  at("ways").hidden = !images.size;
  at("clean").hidden = images.size > 0;
  listKinds();
  listClasses();
  showCommands();
  showPairs(choosePair);
  showCurve();
  showShortcuts();
  try {
    at("single-keys").checked = localStorage.getItem(SINGLE) !== "off";
  } catch { /* as the page has it */ }
  for (const [name, deed] of Object.entries(DEEDS)) {
    at(name).addEventListener("click", () => {
      if (at(name).getAttribute("aria-disabled") !== "true") deed();
    });
  }
  for (const name of ["kind", "class", "decided"]) {
    at(name).addEventListener("change", () => {
      if (name === "class" && at("class").value !== "pair") {
        pair = null;
        listClasses();
      }
      filterAnew();
      announce(describe());
    });
  }
  at("single-keys").addEventListener("change", () => {
    try {
      localStorage.setItem(SINGLE, at("single-keys").checked ? "on" : "off");
    } catch { /* until the page is closed */ }
  });
  at("file").addEventListener("change", async () => {
    const [file] = at("file").files;
    if (!file) return;
    complain("");
    try {
      const number = await load(file);
      filter();
      announce(`${count(number)} decisions loaded.`);
    } catch (error) {
      complain(visible(error.message));
    }
    at("file").value = "";
  });
  addEventListener("storage", (event) => {  // decided in another window
    if (event.key !== KEPT) return;
    restore();
    before = [];
    filter();
  });
  addEventListener("beforeunload", (event) => {
    if (unsaved && !keeps) event.preventDefault();
  });
  filter([...images.keys()].find((index) => !decisions.has(index)));
}
start();
