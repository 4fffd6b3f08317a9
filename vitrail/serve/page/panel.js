// One model and what it says about a photograph: its answer, and what it looks at.
import { announce, element, percent, spoken, unique } from "./element.js";
import { json } from "./server.js";
import { draw, mapOf, peakOf, questionOf, viewsOf } from "./viewer.js";

const FEW = 30;  // classes that are listed by name
const UNREADABLE = 422;  // the status of a file that is no image

export class Panel {
  /** `chosen()` is called when a person chose another model. */
  constructor(heading, models, model, chosen) {
    this.model = model;
    this.photo = null;
    this.turn = 0;  // of drawing: what comes late is not drawn
    this.picker = element("select", { id: unique("model"), change: () => this.choose(this.picker.value, chosen) });
    this.choice = element("label", { class: "picker" }, element("span", { class: "soft" }, heading), this.picker);
    this.facts = element("p", { class: "facts soft" });
    this.classes = element("p", { class: "classes soft" });
    this.canvas = element("canvas", { role: "img", width: 512, height: 512 });
    this.frame = element("div", { class: "frame" }, this.canvas);
    this.caption = element("p", { class: "caption soft" });
    this.layer = slider("Layer", 1, 1);
    this.head = slider("Head", 0, 1);
    this.sliders = element("div", { class: "sliders steps", hidden: true }, this.layer.label, this.head.label);
    for (const one of [this.layer, this.head]) one.input.addEventListener("input", () => this.show());
    this.answer = element("div", { class: "answer" });
    this.near = element("div", { class: "near" });
    this.root = element(
      "article", { class: "panel", "aria-label": heading },
      this.choice,
      element("div", { class: "seen" }, this.frame, this.caption),
      this.sliders,
      element("div", { class: "said" }, this.answer, this.near, this.facts, this.classes),
    );
    this.offer(models);
  }

  /** Offer these models; keep the one that is shown if it is still served. */
  offer(models) {
    this.models = models;
    const still = models.find((one) => one.name === this.model?.name) ?? models[0];
    this.picker.replaceChildren(...models.map((one) => element("option", { value: one.name }, one.name)));
    this.picker.value = still.name;
    this.choice.hidden = models.length === 1;
    const other = still.name !== this.model?.name || still.opened !== this.model?.opened;
    this.model = still;
    this.describe();
    return other;
  }

  choose(name, chosen) {
    this.model = this.models.find((one) => one.name === name);
    this.picker.value = name;
    this.describe();
    chosen();
  }

  /** Say what the model is. */
  describe() {
    const { architecture, classes, metrics, kind, base } = this.model;
    const [height, width] = architecture.image_size;
    const facts = [classes ? `${classes.toLocaleString("en")} classes` : "no classifier", `${height} × ${width} pixels`];
    facts.push(architecture.parameters ? `${count(architecture.parameters)} parameters` : "an exported file");
    const measured = accuracyOf(metrics);
    if (measured) facts.push(measured);
    if (kind !== "model") facts.unshift(kind === "fewshot" ? `learned here, from features of ${base}` : "fine-tuned here");
    else if (this.models.length === 1) facts.unshift(this.model.name);
    if (this.model.refused) facts.push(`its changed files are not served: ${this.model.refused}`);
    this.facts.textContent = facts.join(" · ");
    this.layer.input.max = architecture.depth ?? 1;
    this.layer.input.value = architecture.depth ?? 1;
    this.head.input.max = architecture.heads ?? 1;
    this.head.input.value = 0;
    this.classes.textContent = "";
    if (classes > 0 && classes <= FEW) this.listClasses(this.model);
  }

  async listClasses(model) {
    try {
      const { class_names: names } = await json(`/v1/models/${encodeURIComponent(model.name)}`);
      if (model === this.model) this.classes.textContent = `Its classes: ${names.map(readable).join(", ")}.`;
    } catch { /* the list is extra */ }
  }

  /** Show a photograph: the answer first, then the view. Returns the first choice, or null. */
  async open(photo, how) {
    this.photo = photo;
    this.how = how;
    const [first] = await Promise.all([this.predict(), this.show(), this.showNear()]);
    return first;
  }

  /** Show the nearest training images, where the server has an index of them. */
  async showNear() {
    const { photo, model } = this;
    this.near.replaceChildren();
    if (!model.explain.includes("neighbours")) return;
    let nearest;
    try {
      ({ neighbours: nearest } = await photo.ask(model, "explain?methods=neighbours"));
    } catch {
      return;  // the answer says what is wrong
    }
    if (photo !== this.photo || model !== this.model) return;
    const title = unique("near");
    this.near.replaceChildren(
      element("p", { id: title, class: "soft" }, model.base ? `Nearest training images of ${model.base}` : "Nearest training images"),
      element("ul", { "aria-labelledby": title }, ...nearest.map(neighbour)));
  }

  async predict() {
    const { photo, model } = this;
    this.answer.setAttribute("aria-busy", "true");
    try {
      if (!model.classes) {
        this.answer.replaceChildren(element("p", {}, "This model has no classifier. It shows what it looks at."));
        return null;
      }
      const { results: [{ top, answer }] } = await photo.ask(model, "predict?top=5");
      if (photo === this.photo && model === this.model) this.answer.replaceChildren(...answerElements(top, answer));
      return { ...top[0], label: answerWords(top, answer) };
    } catch (error) {
      // What cannot be read is said once, in the place of the picture.
      if (photo === this.photo && model === this.model) {
        this.answer.replaceChildren(...(error.status === UNREADABLE && model.explain.length ? [] : [problem(error)]));
      }
      return null;
    } finally {
      this.answer.removeAttribute("aria-busy");
    }
  }

  /** Draw the view that is chosen. */
  async show() {
    if (!this.photo) return;
    const { photo, model, how } = this, turn = ++this.turn;
    const view = viewsOf(model).includes(how.view) ? how.view : "photograph";
    const settings = { ...how, layer: Number(this.layer.input.value), head: Number(this.head.input.value) };
    this.sliders.hidden = view !== "attention";
    const question = questionOf(view, model);
    const late = setTimeout(() => this.frame.classList.add("waiting"), 150);
    this.frame.setAttribute("aria-busy", "true");
    try {
      const answer = question && (await photo.ask(model, question));
      if (turn !== this.turn) return;
      this.frame.classList.remove("unreadable");
      if (view === "attention") this.name(answer.attention, settings);
      await draw(this.canvas, photo, model, view, answer, settings);
      if (turn !== this.turn) return;
      this.caption.textContent = view === how.view
        ? await this.explain(view, answer, settings)
        : `This model has no ${how.view}: the photograph is shown.`;
      this.canvas.setAttribute("aria-label", `${photo.name}. ${this.caption.textContent}`);
    } catch (error) {
      if (turn === this.turn) {
        this.canvas.width = this.canvas.height;  // empty
        this.canvas.setAttribute("aria-label", "Nothing to see");
        this.frame.classList.toggle("unreadable", error.status === UNREADABLE || !photo.bitmap);
        const what = error.status === UNREADABLE ? error.message.replace(/^the image: /, `${photo.name}: `) : error.message;
        this.caption.replaceChildren(element("span", { class: "problem" }, what));
      }
    } finally {
      clearTimeout(late);
      if (turn === this.turn) {
        this.frame.classList.remove("waiting");
        this.frame.removeAttribute("aria-busy");
      }
    }
  }

  /** Name the layer and the head beside their sliders. */
  name({ layers, heads }, { layer, head }) {
    this.layer.input.max = layers.length;
    this.head.input.max = heads;
    this.layer.say(`${layers[layer - 1]} of ${layers.length}`);
    this.head.say(head === 0 ? "mean of all" : `${head} of ${heads}`);
  }

  /** What a view shows, in words. */
  async explain(view, answer, settings) {
    if (view === "photograph") return "The whole photograph.";
    const [rows, columns] = answer.grid ?? [0, 0], [height, width] = answer.image_size;
    if (view === "patches") {
      return `What the model gets: ${height} × ${width} pixels, cut into ${rows} × ${columns} patches.`;
    }
    const { most, row, column } = peakOf(mapOf(view, answer, settings));
    const place = `row ${row}, column ${column}`;
    if (view === "occlusion") {
      const first = this.model.classes ? (await this.photo.ask(this.model, "predict?top=5")).results[0].top[0] : null;
      const what = first ? `“${first.label}”` : "the first choice";
      return most > 0
        ? `Where hiding a square costs ${what} most: at row ${row}, column ${column}, by ${points(most)}.`
        : `Hiding any one square costs ${what} nothing.`;
    }
    const alike = `looking everywhere alike gives ${percent(1 / (rows * columns))}`;
    if (view === "rollout") return `Attention, traced through all layers. Brightest: ${place}.`;
    const who = settings.head ? "Where this head looks" : "Where the heads look on average";
    return `${who}. Brightest: ${place}, ${percent(most)} of the attention; ${alike}.`;
  }
}

/** An image of an index: its picture, its class, and how near it is. */
function neighbour({ key, label, similarity, picture }) {
  const words = label ?? key.split("/").at(-1);
  return element("li", { title: key },
    picture ? element("img", { src: picture, alt: "" }) : element("span", { class: "none" }),
    element("span", { class: "label" }, words),
    element("span", { class: "soft" }, similarity.toFixed(2), element("span", { class: "hidden-text" }, " similar")));
}

const count = (n) => (n < 1e6 ? n.toLocaleString("en") : `${(n / 1e6).toPrecision(3)} million`);

const points = (share) => `${(100 * share).toFixed(1)} percentage points`;

/** A slider with its name and value. */
function slider(name, least, most) {
  const id = unique("slider"), output = element("output", { htmlFor: id });
  const input = element("input", { type: "range", id, min: least, max: most, value: most });
  const label = element("label", { htmlFor: id }, element("span", {}, name), output, input);
  const say = (words) => {
    output.textContent = words;
    input.setAttribute("aria-valuetext", words);
  };
  return { input, label, say };
}

/** The answer in large type, then bars of the most probable classes. */
export function answerElements(top, answer) {
  const [first] = top;
  const sure = answer.length === 1 ? [" ", element("span", { class: "sure" }, percent(first.probability))] : [];
  return [
    element("p", { class: "first" }, element("span", { class: "label" }, answerWords(top, answer)), ...sure),
    bars(top),
  ];
}

/** The classes of an answer; "unsure, perhaps ..." if there are none. */
export function answerWords(top, answer) {
  const labels = top.filter((one) => answer.includes(one.name)).map((one) => one.label);
  return labels.join(", ") || `unsure, perhaps ${top[0].label}`;
}

export function bars(top) {
  const list = element("ol", { class: "bars", "aria-label": "Most probable classes" });
  for (const one of top) {
    const item = element("li", {}, element("span", {}, one.label), element("span", {}, percent(one.probability)));
    list.append(item);
    requestAnimationFrame(() => { item.style.backgroundSize = `${100 * one.probability}% 100%`; });
  }
  return list;
}

export const problem = (error) => element("span", { class: "problem" }, error.message);

/** Read an answer aloud. */
export function announceAnswer(name, first) {
  if (first) announce(`${name}: ${first.label}, ${spoken(first.probability)}.`);
}

/** The accuracy that was measured when a model was trained, as words; "" if it is not known. */
function accuracyOf(metrics) {
  const test = metrics.test?.top1, val = metrics.val?.val_top1 ?? metrics.val?.top1;
  const held = metrics["cross-validation"];
  if (typeof test === "number") return `test accuracy ${percent(test)}`;
  if (typeof held?.top1 === "number") return `accuracy ${percent(held.top1)} in cross-validation on ${held.n} photographs`;
  return typeof val === "number" ? `accuracy ${percent(val)} on validation images` : "";
}

/** A class name without its WordNet number. */
export const readable = (name) => name.replace(/^n\d{8}\s+/, "");
