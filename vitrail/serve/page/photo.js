// A photograph of this session: its file, its pixels, and what the models said about it.
import { sendImage } from "./server.js";

const SIDE = 1024;  // pixels along the longer side of the picture that is kept for drawing

export class Photo {
  /** Open a file. What the browser cannot decode has no `bitmap`; the server may know its format. */
  static async open(file) {
    let bitmap = null;
    try {
      const whole = await createImageBitmap(file);
      const by = Math.min(1, SIDE / Math.max(whole.width, whole.height));
      bitmap = whole;
      if (by < 1) {
        const [resizeWidth, resizeHeight] = [Math.round(whole.width * by), Math.round(whole.height * by)];
        bitmap = await createImageBitmap(whole, { resizeWidth, resizeHeight, resizeQuality: "high" });
        whole.close();
      }
    } catch { /* a format that only the server knows */ }
    return new Photo(file, bitmap);
  }

  constructor(file, bitmap) {
    this.file = file;
    this.name = file.name || "pasted picture";
    this.bitmap = bitmap;
    this.answers = new Map();  // a promise for each question that was asked, by model
  }

  /** What a model says: `predict` or `explain?methods=NAME`. Each is asked once; after an error, again. */
  ask(model, question) {
    const name = `${model.name} ${model.opened} ${question}`;
    if (!this.answers.has(name)) {
      const answer = sendImage(model.name, question, this.file);
      answer.catch(() => this.answers.delete(name));
      this.answers.set(name, answer);
    }
    return this.answers.get(name);
  }
}

/** The part of a picture of this size that a model gets, by its preprocessing line; null: not known from the line. */
export function croppedBox(line, width, height) {
  const box = { x: 0, y: 0, width, height };
  let w = width, h = height;  // of the box, in the pixels of the step
  for (const step of line.split("|")) {
    const [, name, inside] = /^\s*(\w+)(?:\((.*)\))?\s*$/s.exec(step) ?? [];
    const numbers = (inside ?? "").split(",").map((word) => word.trim()).filter((word) => /^\d+$/.test(word)).map(Number);
    if (name === "resize") {
      [h, w] = [numbers[0], numbers[1] ?? numbers[0]];
    } else if (name === "resize_small") {
      const by = numbers[0] / Math.min(w, h);
      w *= by;
      h *= by;
    } else if (name === "central_crop") {
      const cropHeight = Math.min(h, numbers[0]), cropWidth = Math.min(w, numbers[1] ?? numbers[0]);
      const [inWidth, inHeight] = [(box.width * cropWidth) / w, (box.height * cropHeight) / h];
      box.x += (box.width - inWidth) / 2;
      box.y += (box.height - inHeight) / 2;
      Object.assign(box, { width: inWidth, height: inHeight });
      [w, h] = [cropWidth, cropHeight];
    } else if (!["uint8", "to_range", "normalize"].includes(name)) {
      return null;
    }
    if (![w, h, box.width, box.height].every((n) => n > 0)) return null;
  }
  return box;
}
