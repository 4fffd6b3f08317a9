// The classes of a collection, each with its photographs.
import { announce, button, element, unique } from "./element.js";
import { acceptDrops, cameraButton, chooser, foldersOf } from "./intake.js";
import { problem } from "./panel.js";
import { address, json } from "./server.js";

const TOGETHER = 16;  // photographs of a request
const BYTES = 24 << 20;  // of a request
const SHOWN = 60;  // photographs of a class that are shown at first

export class Classes {
  /** `changed(collection)` is called with what the server says after a change. */
  constructor(path, changed) {
    this.path = path;
    this.changed = changed;
    this.cards = new Map();  // by class name
    this.last = null;  // the card that was used last
    const id = unique("field");
    this.name = element("input", { type: "text", id, maxLength: 80, required: true, autocomplete: "off" });
    const form = element("form", { class: "fields add card", submit: (event) => this.addClass(event) },
      element("label", { htmlFor: id }, "New class", this.name),
      element("button", { type: "submit", class: "quiet" }, "Add class"),
      element("p", { class: "soft hint" }, "Or drop folders here: each becomes a class of its name."));
    acceptDrops(form, (folders) => this.addFolders(folders), foldersOf);
    this.list = element("div", { class: "classes-list" });
    this.root = element("section", { class: "collect", "aria-label": "Classes" }, this.list, form);
  }

  focus() {
    this.name.focus();
  }

  addClass(event) {
    event.preventDefault();
    const name = this.name.value.trim();
    if (!name) return;
    this.name.value = "";
    this.card(name).focus();
  }

  async addFolders(folders) {
    for (const [name, files] of folders) await this.card(name).add(files);
  }

  /** The card of a class, made if there is none. */
  card(name) {
    if (!this.cards.has(name)) {
      const card = new ClassCard(name, this);
      this.cards.set(name, card);
      this.list.append(card.root);
    }
    return this.cards.get(name);
  }

  /** Show what the server has. Classes without photographs exist on this page only. */
  update(collection) {
    const there = new Map(collection.classes.map((one) => [one.name, one.photos]));
    for (const name of there.keys()) this.card(name);
    for (const [name, card] of this.cards) card.update(there.get(name) ?? []);
  }

  addPasted(files) {
    (this.last ?? [...this.cards.values()].at(-1))?.add(files);
  }

  forget(card) {
    this.cards.delete(card.name);
    card.root.remove();
    if (this.last === card) this.last = null;
    this.name.focus();
  }
}

class ClassCard {
  constructor(name, classes) {
    this.name = name;
    this.classes = classes;
    this.photos = [];
    this.most = SHOWN;
    this.shown = new Map();  // by id
    const title = unique("class");
    const add = (files) => this.add(files);
    const camera = cameraButton("Camera", async (files) => (await this.add(files), "more"), {
      class: "quiet small", "aria-label": `Camera for ${name}`,
    });
    this.count = element("span", { class: "soft" });
    this.grid = element("ul", { class: "thumbs", "aria-label": `Photographs of ${name}` });
    this.status = element("div", { class: "status soft", role: "status" });
    this.more = button("Show all", () => this.showAll(), { class: "plain small", hidden: true });
    this.root = element("section", { class: "card class", "aria-labelledby": title },
      element("div", { class: "row" },
        element("h3", { id: title }, name), this.count,
        button("Remove", () => this.remove(), { class: "plain small", "aria-label": `Remove the class ${name}` })),
      element("p", { class: "soft hint" }, "Drop photographs here."), this.grid, this.more,
      element("div", { class: "ways" },
        chooser("Add photographs", add, { multiple: true, class: "quiet small", "aria-label": `Add photographs to ${name}` }),
        camera),
      this.status);
    acceptDrops(this.root, add);
  }

  focus() {
    this.root.querySelector(".chooser button").focus();
  }

  update(photos) {
    this.photos = photos;
    this.count.textContent = photos.length === 1 ? "1 photograph" : `${photos.length} photographs`;
    const ids = new Set(photos.map((one) => one.id));
    for (const [id, item] of this.shown) {
      if (ids.has(id)) continue;
      item.remove();
      this.shown.delete(id);
    }
    photos.slice(0, this.most).forEach((photo, i) => {
      if (!this.shown.has(photo.id)) {
        const item = this.thumb(photo);
        this.shown.set(photo.id, item);
        this.grid.append(item);
      }
      this.shown.get(photo.id).querySelector("button").setAttribute("aria-label", `Remove photograph ${i + 1} of ${this.name}`);
    });
    this.more.hidden = photos.length <= this.most;
    this.root.classList.toggle("empty", !photos.length);
  }

  showAll() {
    this.most = Infinity;
    this.update(this.photos);
  }

  thumb(photo) {
    const picture = element("img", { alt: "", loading: "lazy", width: 96, height: 96 });
    address(photo.url).then((url) => { picture.src = url; }, () => {});
    return element("li", {}, picture, button("×", () => this.removePhoto(photo), { class: "remove" }));
  }

  /** Add files to the class, some at a time. */
  async add(files) {
    this.classes.last = this;
    let sent = 0;
    const wrong = [], elsewhere = [];
    this.root.setAttribute("aria-busy", "true");
    try {
      for (const some of batches(files)) {
        this.status.textContent = `Adding ${sent} of ${files.length} …`;
        const form = new FormData();
        for (const file of some) form.append("photo", file, file.name);
        const answer = await json(`${this.classes.path}/photos?class=${encodeURIComponent(this.name)}`, {
          method: "POST", body: form,
        });
        sent += some.length;
        wrong.push(...answer.errors.map((one) => one.error));
        elsewhere.push(...answer.present);
        this.classes.changed(answer.collection);
      }
      this.status.textContent = notice(this.name, wrong, elsewhere);
      announce(`${this.name}: ${this.count.textContent}. ${this.status.textContent}`);
    } catch (error) {
      this.status.replaceChildren(problem(error));
    } finally {
      this.root.removeAttribute("aria-busy");
    }
  }

  async removePhoto(photo) {
    await this.change(`${this.classes.path}/photos/${photo.id}`);
    this.focus();
  }

  async remove() {
    if (this.photos.length) await this.change(`${this.classes.path}/classes?class=${encodeURIComponent(this.name)}`);
    if (!this.photos.length) this.classes.forget(this);
  }

  async change(path) {
    try {
      this.classes.changed(await json(path, { method: "DELETE" }));
    } catch (error) {
      this.status.replaceChildren(problem(error));
    }
  }
}

/** What was not added, and why. */
function notice(name, wrong, elsewhere) {
  const words = [];
  if (wrong.length) words.push(`Not added: ${wrong.slice(0, 3).join("; ")}${wrong.length > 3 ? `; and ${wrong.length - 3} more` : ""}.`);
  const others = [...new Set(elsewhere.filter((one) => one.class !== name).map((one) => one.class))];
  if (others.length) words.push(`Some are in ${others.join(", ")} already, and stay there.`);
  else if (elsewhere.length) words.push(`${elsewhere.length} were here already.`);
  return words.join(" ");
}

function* batches(files) {
  let some = [], bytes = 0;
  for (const file of files) {
    if (some.length && (some.length === TOGETHER || bytes + file.size > BYTES)) {
      yield some;
      [some, bytes] = [[], 0];
    }
    some.push(file);
    bytes += file.size;
  }
  if (some.length) yield some;
}
