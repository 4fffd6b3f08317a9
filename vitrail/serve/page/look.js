// The first view: a photograph, what one or two models say about it, and the photographs of this session.
import { announce, at, element } from "./element.js";
import { acceptDrops, cameraButton, chooser } from "./intake.js";
import { Panel, announceAnswer } from "./panel.js";
import { Photo } from "./photo.js";
import { request } from "./server.js";
import { VIEWS, viewsOf } from "./viewer.js";

const SAMPLES = ["ladybug", "orange", "mushroom", "basketball", "lemon", "banana", "obelisk", "dumbbell"];
const MOST = 24;  // photographs of the history
const MOST_AT_ONCE = 12;  // that are taken of one drop

const how = { view: "rollout", strength: 70, smooth: true };
const panels = [];
const seen = [];  // {photo, item, says}
let models = [];
let current = null;

/** Set up the view. */
export function startLook(served) {
  models = served;
  panels.push(new Panel("Model", models, models[0], () => show(0)));
  at("panels").append(panels[0].root);
  makeIntake();
  makeViews();
  at("compare").addEventListener("change", compare);
  at("strength").addEventListener("input", () => {
    how.strength = Number(at("strength").value);
    nameStrength();
    redraw();
  });
  at("smooth").addEventListener("change", () => {
    how.smooth = at("smooth").checked;
    redraw();
  });
  at("forget").addEventListener("click", forget);
  nameStrength();
  offer(models);
}

/** Offer other models: what is shown of a model that has changed is asked again. */
export function offer(served) {
  models = served;
  at("compare-field").hidden = models.length < 2;
  panels.forEach((panel, i) => {
    if (panel.offer(models) && current) show(i);
  });
  updateViews();
}

/** Choose a model by its name, as when it was just trained. */
export function useModel(name) {
  panels[0].choose(name, () => show(0));
}

function makeIntake() {
  const camera = cameraButton("Use the camera", take, { class: "quiet" });
  at("ways").append(chooser("Choose a photograph", take, { multiple: true, class: "strong" }), ...(camera ? [camera] : []));
  for (const name of SAMPLES) {
    const address = `/static/pictures/${name}.png`;
    const picture = element("img", { src: address, alt: name, width: 56, height: 56 });
    const press = async () => take([new File([await (await request(address)).blob()], `${name}.png`, { type: "image/png" })]);
    at("samples").append(element("li", {}, element("button", { type: "button", title: `Sample: ${name}`, click: press }, picture)));
  }
  acceptDrops(document.body, (files) => (at("look").hidden ? null : take(files)));
}

/** Take photographs: the last one is shown, all are kept in the history. */
export async function take(files) {
  for (const file of files.slice(0, MOST_AT_ONCE)) await open(await Photo.open(file));
}

async function open(photo) {
  current = photo;
  at("look").classList.add("opened");
  at("result").hidden = false;
  const entry = seen.find((one) => one.photo === photo) ?? remember(photo);
  for (const one of seen) one.item.firstChild.setAttribute("aria-pressed", String(one === entry));
  const answers = await Promise.all(panels.map((panel) => panel.open(photo, how)));
  entry.says.textContent = answers[0]?.label ?? (panels[0].model.classes ? "no answer" : "");
  if (current === photo) announceAnswers(answers);
}

async function show(i) {
  updateViews();
  if (!current) return;
  const photo = current, first = await panels[i].open(photo, how);
  if (i === 0 && first) seen.find((one) => one.photo === photo).says.textContent = first.label;
  announceAnswer(panels[i].model.name, first);
}

function announceAnswers(answers) {
  if (!answers.some(Boolean)) return announce(panels[0].caption.textContent);
  if (panels.length === 1) return announceAnswer(panels[0].model.name, answers[0]);
  announce(panels.map((panel, i) => (answers[i] ? `${panel.model.name}: ${answers[i].label}.` : "")).join(" "));
}

const redraw = () => panels.forEach((panel) => panel.show());

function makeViews() {
  for (const [view, title] of Object.entries(VIEWS)) {
    const radio = element("input", { type: "radio", name: "view", value: view, checked: view === how.view });
    radio.addEventListener("change", () => {
      how.view = view;
      updateViews();
      redraw();
    });
    at("views").append(element("label", { class: "segment" }, radio, element("span", {}, title)));
  }
}

/** Offer the views that one of the models has. */
function updateViews() {
  const has = new Set(panels.flatMap((panel) => viewsOf(panel.model)));
  for (const radio of at("views").querySelectorAll("input")) {
    radio.closest("label").hidden = !has.has(radio.value);
  }
  if (!has.has(how.view)) {
    how.view = "photograph";
    at("views").querySelector("[value=photograph]").checked = true;
  }
  at("views").hidden = has.size < 2;
  at("overlay").hidden = ["photograph", "patches"].includes(how.view);
}

function nameStrength() {
  at("strength-is").textContent = `${how.strength}\u2009%`;
  at("strength").setAttribute("aria-valuetext", `${how.strength} percent`);
}

/** Show a second model beside the first, or only the first. */
function compare() {
  const both = at("compare").checked;
  at("panels").classList.toggle("two", both);
  if (both && panels.length === 1) {
    const other = models.find((one) => one.name !== panels[0].model.name) ?? models[0];
    panels.push(new Panel("Compared with", models, other, () => show(1)));
    at("panels").append(panels[1].root);
    show(1);
  } else if (!both && panels.length === 2) {
    panels.pop().root.remove();
    updateViews();
    redraw();
  }
}

function remember(photo) {
  const says = element("span", { class: "says" });
  const item = element("li", {}, element(
    "button", { type: "button", "aria-pressed": "false", title: photo.name, click: () => open(photo) },
    thumbnail(photo), says, element("span", { class: "hidden-text" }, ` ${photo.name}`)));
  const entry = { photo, item, says };
  seen.unshift(entry);
  at("history-list").prepend(item);
  while (seen.length > MOST) seen.pop().item.remove();
  at("history").hidden = false;
  return entry;
}

function thumbnail({ bitmap }) {
  const canvas = element("canvas", { width: 160, height: 160, "aria-hidden": "true" });
  if (bitmap) {
    const side = Math.min(bitmap.width, bitmap.height);
    const x = (bitmap.width - side) / 2, y = (bitmap.height - side) / 2;
    canvas.getContext("2d").drawImage(bitmap, x, y, side, side, 0, 0, 160, 160);
  }
  return canvas;
}

/** Forget all photographs of this session. */
function forget() {
  seen.splice(0);
  current = null;
  at("history-list").replaceChildren();
  at("history").hidden = true;
  at("result").hidden = true;
  at("look").classList.remove("opened");
  for (const panel of panels) panel.photo = null;
  announce("The photographs of this session are forgotten.");
  at("ways").querySelector("button").focus();
}
