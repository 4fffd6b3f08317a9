// The right-hand side of the second view: train at once, fine-tune in the background, try, download.
import { announce, button, element, percent, spoken } from "./element.js";
import { curve } from "./curve.js";
import { acceptDrops, cameraButton, chooser } from "./intake.js";
import { answerElements, answerWords, problem } from "./panel.js";
import { address, json, request, sendImage } from "./server.js";

const PAUSE = 1000;  // milliseconds between two questions about a fine-tuning

export class Training {
  constructor(path, hooks) {
    this.path = path;
    this.hooks = hooks;
    this.collection = null;
    this.timer = null;
    this.closed = false;
    this.few = new Card("Train", "From the features of the model: ready in about a second.");
    this.tune = new Card("Fine-tune", "Trains the whole model, in the background. It pays with some hundred photographs.");
    this.trial = new Trial();
    this.root = element("section", { class: "train", "aria-label": "Training" }, this.few.root, this.trial.root, this.tune.root);
    this.trainButton = button("Train", () => this.train(), { class: "strong" });
    this.tuneButton = button("Fine-tune", () => this.start(), { class: "quiet" });
    this.stopButton = button("Stop", () => this.stop(), { class: "quiet" });
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }

  /** Show what the server says of the collection. */
  update(collection) {
    this.collection = collection;
    const enough = collection.classes.length >= 2;
    this.trainButton.disabled = this.tuneButton.disabled = !enough;
    this.showFew(collection.fewshot, enough);
    this.showTune(collection.finetune);
    this.trial.offer(
      [collection.fewshot?.model, collection.finetune?.model].filter(Boolean));
  }

  showFew(few, enough) {
    const body = [this.trainButton];
    if (!enough) body.push(element("p", { class: "soft" }, "It needs photographs in at least two classes."));
    if (few) {
      body.push(result(few.accuracy, few.folds
        ? `of ${few.photos} photographs right, each judged without having been seen (${few.folds} folds)`
        : `trained from ${few.photos} photographs; two of each class are needed to measure it`));
      if (few.stale) body.push(stale("Train"));
      body.push(this.actions(few.model, "fewshot"));
    }
    this.few.fill(body);
  }

  showTune(tune) {
    const body = [];
    const running = tune?.state === "running";
    this.tuneButton.textContent = tune?.state === "interrupted" ? "Resume" : tune ? "Fine-tune again" : "Fine-tune";
    body.push(running ? this.stopButton : this.tuneButton);
    if (running) body.push(this.progress(tune));
    if (tune?.state === "interrupted") body.push(element("p", {}, `Stopped at step ${tune.step}. It can be resumed.`));
    if (tune?.state === "failed") body.push(element("p", { class: "problem" }, tune.message));
    if (tune?.state === "finished") {
      body.push(tune.test
        ? result(tune.test.top1, `of ${tune.test.n} photographs right that were held out for the test`)
        : element("p", {}, `Finished: ${tune.step} steps.`));
      if (tune.stale) body.push(stale("Fine-tune"));
      if (tune.model) body.push(this.actions(tune.model, "finetuned"));
    }
    if (tune?.curve.length > 1) body.push(...curves(tune));
    this.tune.fill(body);
    const waits = tune?.state === "finished" && !tune.model;  // it is being opened
    if ((running || waits) && !this.closed) this.poll();
  }

  progress({ step, steps, seconds }) {
    const bar = element("progress", { "aria-label": "Fine-tuning", max: steps ?? 1 });
    if (steps) bar.value = step;
    const words = steps ? `Step ${step} of ${steps} · ${Math.round(seconds)} s` : "It starts …";
    return element("div", {}, bar, element("p", { class: "soft" }, words));
  }

  actions(model, what) {
    return element("div", { class: "ways" },
      button("Look with it", () => this.hooks.use(model), { class: "quiet small", "aria-label": `Look with it: ${model}` }),
      button("Download", () => this.download(what), { class: "quiet small", "aria-label": `Download ${model}` }),
      button("ONNX", () => this.exportFile(what), { class: "quiet small", "aria-label": `Download ${model} as an ONNX file` }));
  }

  /** Train at once. */
  async train() {
    this.few.say("Training …");
    try {
      const few = await json(`${this.path}/fewshot`, { method: "POST" });
      this.few.say("");
      this.update({ ...this.collection, fewshot: few });
      await Promise.all([this.hooks.changed(), this.trial.ask()]);
      announce(few.accuracy === null ? "Trained." : `Trained: ${spoken(few.accuracy)} right.`);
    } catch (error) {
      this.few.say(problem(error));
    }
  }

  start() {
    return this.tell("POST");
  }

  stop() {
    return this.tell("DELETE");
  }

  async tell(method) {
    this.tune.say(method === "POST" ? "" : "It saves and stops …");
    try {
      this.update({ ...this.collection, finetune: await json(`${this.path}/finetune`, { method }) });
      this.tune.say("");
    } catch (error) {
      this.tune.say(problem(error));
    }
  }

  poll() {
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      try {
        const tune = await json(`${this.path}/finetune`);
        if (this.closed) return;
        const before = this.collection.finetune;
        this.update({ ...this.collection, finetune: tune });
        if (tune?.model && !before?.model) {
          await this.hooks.changed();
          announce(tune.test ? `Fine-tuned: ${spoken(tune.test.top1)} right on the test.` : "Fine-tuned.");
        }
      } catch (error) {
        this.tune.say(problem(error));
        if (!this.closed) this.poll();
      }
    }, PAUSE);
  }

  async download(what) {
    save(await address(`${this.path}/download?what=${what}`, true), `${this.collection.name}-${what}.zip`);
  }

  /** Download an ONNX file; the server takes its time to write and to compare it. */
  async exportFile(what) {
    const card = what === "fewshot" ? this.few : this.tune;
    card.say("Writing the file, and comparing it with the model\u00a0…");
    try {
      const answer = await request(`${this.path}/onnx?what=${what}`, { method: "POST" });
      save(URL.createObjectURL(await answer.blob()), `${this.collection.name}-${what}-onnx.zip`);
      card.say("");
    } catch (error) {
      card.say(problem(error));
    }
  }
}

/** A card with a heading, a body that is drawn anew, and a line that says what happens. */
class Card {
  constructor(title, words) {
    this.body = element("div", { class: "body" });
    this.status = element("p", { class: "status soft", role: "status" });
    this.root = element("div", { class: "card" },
      element("h3", {}, title), element("p", { class: "soft" }, words), this.body, this.status);
  }

  fill(children) {
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    const label = focused?.getAttribute("aria-label") ?? focused?.textContent;
    this.body.replaceChildren(...children);
    if (!focused || document.activeElement === focused) return;
    const buttons = [...this.body.querySelectorAll("button")];
    (buttons.find((one) => (one.getAttribute("aria-label") ?? one.textContent) === label) ?? buttons[0])?.focus();
  }

  say(words) {
    this.status.replaceChildren(words);
  }
}

/** Photographs for what was just trained. */
class Trial {
  constructor() {
    const take = (files) => this.take(files.at(-1));
    const camera = cameraButton("Camera", take, { class: "quiet small", "aria-label": "Camera to try it" });
    this.model = null;
    this.file = null;
    this.picture = element("img", { alt: "", hidden: true });
    this.answer = element("div", { class: "answer" });
    this.picker = element("div", { class: "segments", role: "radiogroup", "aria-label": "Classifier" });
    this.root = element("div", { class: "card trial", hidden: true },
      element("h3", {}, "Try it"), this.picker, this.picture, this.answer,
      element("div", { class: "ways" }, chooser("Choose a photograph", take, { class: "quiet small" }), ...(camera ? [camera] : [])),
      element("p", { class: "soft hint" }, "Or drop one here."));
    acceptDrops(this.root, take);
  }

  offer(models) {
    this.root.hidden = !models.length;
    if (models.join() === this.models?.join()) return;
    const fresh = models.find((one) => !this.models?.includes(one));
    this.models = models;
    this.model = fresh ?? models[0] ?? null;
    this.picker.hidden = models.length < 2;
    this.picker.replaceChildren(...models.map((name) => {
      const radio = element("input", { type: "radio", name: "trial", value: name, checked: name === this.model });
      radio.addEventListener("change", () => {
        this.model = name;
        this.ask();
      });
      return element("label", { class: "segment" }, radio, element("span", {}, name.endsWith("-fewshot") ? "Trained" : "Fine-tuned"));
    }));
    this.ask();
  }

  take(file) {
    this.file = file;
    URL.revokeObjectURL(this.picture.src);
    this.picture.src = URL.createObjectURL(file);
    this.picture.hidden = false;
    return this.ask();
  }

  async ask() {
    const { file, model } = this;
    if (!file || !model) return;
    try {
      const { results: [{ top, answer }] } = await sendImage(model, "predict?top=5", file);
      if (file !== this.file || model !== this.model) return;
      this.answer.replaceChildren(...answerElements(top, answer));
      announce(`${answerWords(top, answer)}, ${spoken(top[0].probability)}.`);
    } catch (error) {
      this.answer.replaceChildren(problem(error));
    }
  }
}

/** Let the browser save what is at an address of a copy. */
function save(href, download) {
  element("a", { href, download }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

function result(accuracy, words) {
  if (accuracy === null) return element("p", {}, `${words[0].toUpperCase()}${words.slice(1)}.`);
  return element("p", { class: "measured" }, element("strong", {}, percent(accuracy)), ` ${words}`);
}

const stale = (what) => element("p", { class: "soft" }, `Photographs were changed since. ${what} again to use them.`);

/** The loss by step, and the accuracy on photographs held out for validation. */
function curves(tune) {
  const drawn = [element("figure", {},
    element("figcaption", {}, "Loss"),
    curve("Loss", tune.curve.map((one) => [one.step, one.loss]), { steps: tune.steps, word: (value) => value.toFixed(2) }))];
  if (tune.evaluations.length > 1) {
    drawn.push(element("figure", {},
      element("figcaption", {}, "Accuracy on photographs held out for validation"),
      curve("Accuracy", tune.evaluations.map((one) => [one.step, one.top1]), { steps: tune.steps, top: 1, word: percent })));
  }
  return drawn;
}
