// The picture of a panel: the photograph, its patches, or a map of the model over it.
import { paint } from "/static/look/heat.js";
import { element } from "./element.js";
import { croppedBox } from "./photo.js";

const SIDE = 1024;  // pixels along the longer side of the canvas

export const VIEWS = {
  photograph: "Photograph", patches: "Patches", rollout: "Rollout", attention: "Attention", occlusion: "Occlusion",
};

/** The views that a model has. */
export const viewsOf = (model) =>
  Object.keys(VIEWS).filter((view) =>
    view === "photograph" || (view === "patches" ? Boolean(model.architecture.grid) : model.explain.includes(view)));

/** The question of a view to the server; null: none. */
export const questionOf = (view, model) =>
  view === "photograph" ? null : `explain?methods=${view === "patches" ? model.explain[0] : view}`;

/** Draw a view on a canvas. `answer`: of the server to the view's question; `how`: layer, head, strength, smooth. */
export async function draw(canvas, photo, model, view, answer, how) {
  if (view === "photograph") {
    const picture = photo.bitmap ?? (await modelPicture(photo, model));
    fit(canvas, picture.width, picture.height);
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    return;
  }
  const [height, width] = answer.image_size;
  const given = await opened(answer.picture);
  fit(canvas, width, height);
  const pen = canvas.getContext("2d"), W = canvas.width, H = canvas.height;
  if (view === "patches") {
    pen.imageSmoothingEnabled = false;
    pen.drawImage(given, 0, 0, W, H);
    lead(pen, ...answer.grid);
    return;
  }
  const box = photo.bitmap && croppedBox(model.preprocess, photo.bitmap.width, photo.bitmap.height);
  if (box) pen.drawImage(photo.bitmap, box.x, box.y, box.width, box.height, 0, 0, W, H);
  else pen.drawImage(given, 0, 0, W, H);
  const map = mapOf(view, answer, how), strength = how.strength / 100;
  if (view === "rollout") {
    pen.globalCompositeOperation = "multiply";
    pen.drawImage(paint(map, { smooth: how.smooth, light: true, least: 1 - strength }), 0, 0, W, H);
    pen.globalCompositeOperation = "source-over";
    return;
  }
  pen.globalCompositeOperation = "saturation";  // over grey, colours are those of the map
  pen.fillStyle = "grey";
  pen.fillRect(0, 0, W, H);
  pen.globalCompositeOperation = "source-over";
  pen.globalAlpha = strength;
  pen.imageSmoothingEnabled = how.smooth;
  // The last squares of occlusion may reach over the edge.
  const cell = answer.occlusion?.cell;
  const [mapWidth, mapHeight] =
    view === "occlusion" ? [(W * cell * map[0].length) / width, (H * cell * map.length) / height] : [W, H];
  pen.drawImage(paint(map, { smooth: how.smooth }), 0, 0, mapWidth, mapHeight);
  pen.globalAlpha = 1;
}

/** The map of a view, rows of numbers of at least 0. */
export function mapOf(view, answer, { layer, head }) {
  if (view === "rollout") return answer.rollout;
  if (view === "occlusion") return answer.occlusion.falls.map((row) => row.map((fall) => Math.max(0, fall)));
  const heads = answer.attention.maps[layer - 1];
  if (head > 0) return heads[head - 1];
  return heads[0].map((row, r) => row.map((_, c) => heads.reduce((sum, map) => sum + map[r][c], 0) / heads.length));
}

/** The largest number of a map, and where: {most, row, column}, counted from 1. */
export function peakOf(map) {
  const peak = { most: -Infinity, row: 0, column: 0 };
  map.forEach((row, r) => row.forEach((value, c) => {
    if (value > peak.most) Object.assign(peak, { most: value, row: r + 1, column: c + 1 });
  }));
  return peak;
}

async function modelPicture(photo, model) {
  if (!model.explain.includes("occlusion")) throw new Error(`${photo.name}: the browser cannot show this file.`);
  return opened((await photo.ask(model, questionOf("occlusion", model))).picture);
}

async function opened(address) {
  const image = element("img", { src: address });
  await image.decode();
  return image;
}

function fit(canvas, width, height) {
  const by = SIDE / Math.max(width, height);
  canvas.width = Math.round(width * by);
  canvas.height = Math.round(height * by);
}

/** Draw the lines between patches, like the lead between panes. */
function lead(pen, rows, columns) {
  const { width, height } = pen.canvas;
  pen.strokeStyle = "rgb(12 14 18 / 0.85)";
  pen.lineWidth = Math.max(2, Math.min(8, (0.06 * width) / columns));
  pen.beginPath();
  for (let row = 1; row < rows; row++) pen.moveTo(0, (row * height) / rows), pen.lineTo(width, (row * height) / rows);
  for (let c = 1; c < columns; c++) pen.moveTo((c * width) / columns, 0), pen.lineTo((c * width) / columns, height);
  pen.stroke();
}
