// The sliders: one small grey picture an image holds the maps of all layers (down) and heads (across, their mean
// first); the chosen one is coloured and laid over the image.
"use strict";
const data = JSON.parse(document.getElementById("maps").textContent);
const at = (id) => document.getElementById(id);
const canvas = at("view"), pen = canvas.getContext("2d");
const small = document.createElement("canvas"), smallPen = small.getContext("2d", { willReadFrequently: true });

const opened = (uri) => new Promise((done, failed) => {
  const image = new Image();
  image.onload = () => done(image);
  image.onerror = failed;
  image.src = uri;
});

function colour(value) {  // 0 to 1, by the same steps as the figures
  const place = value * (data.scale.length - 1), low = Math.min(Math.floor(place), data.scale.length - 2);
  return data.scale[low].map((c, i) => c + (data.scale[low + 1][i] - c) * (place - low));
}

const pictures = data.images.map((one) => Promise.all([opened(one.picture), opened(one.maps)]));

async function show() {
  const number = Number(at("image").value), layer = Number(at("layer").value), head = Number(at("head").value);
  const one = data.images[number], [rows, columns] = data.grid;
  const [picture, maps] = await pictures[number];
  small.width = columns;
  small.height = rows;
  smallPen.drawImage(maps, head * columns, (layer - 1) * rows, columns, rows, 0, 0, columns, rows);
  const pixels = smallPen.getImageData(0, 0, columns, rows);
  for (let i = 0; i < pixels.data.length; i += 4) {
    const [r, g, b] = colour(pixels.data[i] / 255);
    pixels.data.set([r, g, b, 255], i);
  }
  smallPen.putImageData(pixels, 0, 0);
  const enlarged = Math.max(1, Math.round(448 / Math.max(picture.width, picture.height)));
  canvas.width = picture.width * enlarged;
  canvas.height = picture.height * enlarged;
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  pen.globalAlpha = Number(at("strength").value) / 100;
  pen.imageSmoothingEnabled = at("smooth").checked;
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
  pen.globalAlpha = 1;
  at("layer-is").textContent = `${data.layers[layer - 1]} of ${data.depth}`;
  at("head-is").textContent = head === 0 ? "mean of all" : `${head} of ${data.heads}`;
  at("strength-is").textContent = `${at("strength").value}%`;
  const peak = one.peaks[layer - 1][head];
  at("peak").textContent =
    `Brightest patch: ${(100 * peak).toPrecision(2)}% of the attention; looking everywhere alike gives ` +
    `${(100 * data.alike).toPrecision(2)}%.`;
  canvas.setAttribute("aria-label", `${one.name}, layer ${data.layers[layer - 1]}, head ${at("head-is").textContent}`);
}

for (const id of ["image", "layer", "head", "strength", "smooth"]) at(id).addEventListener("input", show);
show();
