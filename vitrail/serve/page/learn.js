// The second view: collections of photographs, and classifiers that are trained from them.
import { announce, at, button, element, unique } from "./element.js";
import { Classes } from "./classes.js";
import { problem } from "./panel.js";
import { json, request, send } from "./server.js";
import { Training } from "./training.js";

let hooks = null;
let models = [];
let collections = [];
let opened = null;  // {collection, classes, training}

/** Set up the view. `changed()`: other models are served; `use(name)`: look at photographs with a model. */
export async function startLearn(session, served, given) {
  hooks = given;
  models = served.filter((model) => model.kind === "model" && model.architecture.family !== "exported");
  const heading = element("h1", {}, "Teach it your own classes");
  if (!session.learn || !models.length) {
    const why = session.learn
      ? "An exported file cannot learn. Start the server with a model:"
      : "This server does not learn. Start it with a folder for what it learns:";
    at("learn").append(heading, element("p", { class: "lead" }, why),
      element("pre", {}, `vitrail serve ${models[0]?.name ?? "MODEL"} --learn classifiers`));
    return;
  }
  const lead = "Name your classes, drop a few photographs into each, and train: a classifier is ready in about a second. " +
    "Everything stays on this server.";
  at("learn").append(heading, element("p", { class: "lead" }, lead),
    element("div", { id: "collections" }), element("div", { id: "workshop" }));
  await list();
  if (collections.length) await open(collections[0].name);
}

async function list() {
  ({ collections } = await json("/v1/learn"));
  drawList();
}

/** The collections, and the form for a new one. */
function drawList() {
  const known = element("ul", { class: "chips", "aria-label": "Your classifiers" },
    ...collections.map(({ name }) => element("li", {}, element("button", {
      type: "button", class: "chip", "aria-pressed": String(opened?.collection.name === name), click: () => open(name),
    }, name))));
  const add = collections.length
    ? element("details", { class: "new" }, element("summary", {}, "New classifier"), newForm())
    : element("div", { class: "new card" }, element("h2", {}, "Your first classifier"), newForm());
  at("collections").replaceChildren(...(collections.length ? [known] : []), add);
}

function newForm() {
  const ids = [unique("field"), unique("field")], wrong = element("p", { class: "problem", role: "status" });
  const name = element("input", {
    type: "text", id: ids[0], required: true, maxLength: 64, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*", autocomplete: "off",
    placeholder: "cups", title: "Letters, digits, and . _ - inside",
  });
  const base = element("select", { id: ids[1] }, ...models.map((model) => element("option", { value: model.name }, model.name)));
  const submit = async (event) => {
    event.preventDefault();
    wrong.textContent = "";
    try {
      const made = await send("/v1/learn", { name: name.value.trim(), model: base.value });
      await list();
      await open(made.name);
      opened.classes.focus();
    } catch (error) {
      wrong.replaceChildren(problem(error));
    }
  };
  return element("form", { class: "fields", submit },
    element("label", { htmlFor: ids[0] }, "Name", name),
    element("label", { htmlFor: ids[1] }, "Starts from", base),
    element("button", { type: "submit", class: "strong" }, "Create"), wrong);
}

/** Open a collection. */
async function open(name) {
  opened?.training.close();
  const collection = await json(path(name));
  const training = new Training(path(name), hooks);
  const classes = new Classes(path(name), (changed) => update(changed));
  opened = { collection, classes, training };
  at("workshop").replaceChildren(
    element("div", { class: "row" },
      element("h2", { id: "workshop-title" }, name),
      element("span", { class: "soft" }, `starts from ${collection.model}`),
      button("Delete", () => remove(name), { class: "plain", "aria-label": `Delete ${name}` })),
    element("div", { class: "workshop" }, classes.root, training.root));
  update(collection);
  drawList();
}

const path = (name) => `/v1/learn/${encodeURIComponent(name)}`;

function update(collection) {
  opened.collection = collection;
  opened.classes.update(collection);
  opened.training.update(collection);
}

async function remove(name) {
  const sure = await confirmed(`Delete ${name}?`, "Its photographs and its classifiers are deleted from the server.", "Delete");
  if (!sure) return;
  await request(path(name), { method: "DELETE" });
  opened.training.close();
  opened = null;
  at("workshop").replaceChildren();
  await list();
  await hooks.changed();
  announce(`${name} is deleted.`);
  at("collections").querySelector("button, summary").focus();
}

/** Ask in a dialog; true: yes. */
function confirmed(title, words, yes) {
  const dialog = at("ask");
  at("ask-title").textContent = title;
  at("ask-words").textContent = words;
  at("ask-yes").textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true });
  });
}

/** Take photographs that were pasted: into the class that was used last. */
export function addPasted(files) {
  opened?.classes.addPasted(files);
}
