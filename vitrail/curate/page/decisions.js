// The decisions: of each image at most one, by its index. The browser keeps them, by the fingerprint of the data, and a
// file holds them for `vitrail data apply` and ?decisions=.

const KEPT = `vitrail review ${findings.fingerprint}`;
const ACTIONS = ["keep", "relabel", "drop"];
const MAX_BYTES = 64 << 20;  // of a file

const images = new Map();  // index -> {index, key, label, suggested, by, findings}, in the order of the findings
for (const one of findings.findings) {
  if (!images.has(one.index)) {
    images.set(one.index, { index: one.index, key: one.key, label: one.label, suggested: null, by: null, findings: [] });
  }
  const image = images.get(one.index);
  if (image.suggested === null && one.suggested !== null) [image.suggested, image.by] = [one.suggested, one.kind];
  image.findings.push(one);
}
const classes = new Set(findings.classes);
let decisions = new Map();  // index -> {key, index, action, label}
let before = [];  // what undo brings back: lists of [index, the decision or undefined]
let unsaved = 0;  // decisions since the last file
let keeps = true;  // the browser can keep them

/** Check what a file or the browser holds; return the decision, or null. */
function checked(row) {
  if (typeof row !== "object" || row === null) return null;
  const { key, index, action, label } = row;
  const fits = typeof key === "string" && Number.isInteger(index) && index >= 0 && index < findings.images &&
    ACTIONS.includes(action) && (action === "relabel" ? classes.has(label) : label === null) &&
    (!images.has(index) || images.get(index).key === key);
  return fits ? { key, index, action, label } : null;
}

function restore() {
  try {
    const rows = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
    decisions = new Map((rows.decisions ?? []).map(checked).filter(Boolean).map((one) => [one.index, one]));
    unsaved = Number.isInteger(rows.unsaved) ? rows.unsaved : 0;
  } catch {  // it is switched off, or holds something else
    keeps = false;
  }
}

function keepInBrowser() {
  try {
    localStorage.setItem(KEPT, JSON.stringify({ decisions: [...decisions.values()], unsaved }));
    keeps = true;
  } catch {
    keeps = false;
  }
}

/** Set decisions, [index, decision or undefined] each, as one step of undo. */
function decide(changes) {
  before.push(changes.map(([index]) => [index, decisions.get(index)]));
  put(changes);
  unsaved += changes.length;
  keepInBrowser();
}

/** Take back the last step; return the indices that it changed. */
function undo() {
  const changes = before.pop() ?? [];
  put(changes);
  unsaved += changes.length;
  keepInBrowser();
  return changes.map(([index]) => index);
}

function put(changes) {
  for (const [index, decision] of changes) {
    if (decision === undefined) decisions.delete(index);
    else decisions.set(index, decision);
  }
}

/** Write the file. */
function save() {
  const { data, split, fingerprint, images: n } = findings;
  const rows = [...decisions.values()].sort((a, b) => a.index - b.index);
  const contents = { format: "vitrail decisions", version: 1, data, split, fingerprint, images: n, decisions: rows };
  const url = URL.createObjectURL(new Blob([JSON.stringify(contents, null, 1), "\n"], { type: "application/json" }));
  element("a", { href: url, download: "decisions.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  unsaved = 0;
  keepInBrowser();
}

/** Read a file; return how many decisions it has. Where both have one about an image, the file's counts. */
async function load(file) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is too large to be a file of decisions.`);
  let contents = null;
  try {
    contents = JSON.parse(await file.text());
  } catch { /* said below */ }
  if (contents?.format !== "vitrail decisions" || contents.version !== 1 || !Array.isArray(contents.decisions)) {
    throw new Error(`${file.name} is not a file of decisions.`);
  }
  if (contents.fingerprint !== findings.fingerprint || contents.images !== findings.images) {
    const other = `${contents.data}, split ${contents.split}`;
    throw new Error(`${file.name} was made for other data (${other}), or the data has changed since.`);
  }
  const rows = contents.decisions.map(checked);
  if (rows.includes(null) || new Set(rows.map((one) => one.index)).size < rows.length) {
    throw new Error(`${file.name} is damaged, or was edited by hand: nothing was loaded.`);
  }
  const unsavedBefore = unsaved;
  if (rows.length) decide(rows.map((one) => [one.index, one]));
  unsaved = unsavedBefore;
  keepInBrowser();
  return rows.length;
}
