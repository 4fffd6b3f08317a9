// Maps over pictures: small tables of numbers, enlarged and coloured, or drawn as light.

// The steps of vitrail/inspection/pictures.py: from nothing to all, each brighter than the one before.
export const SCALE = [
  [8, 12, 38], [58, 24, 106], [126, 36, 116], [190, 54, 92], [236, 98, 56], [250, 165, 40], [252, 240, 150],
];
const SIDE = 224;  // pixels along the longer side of an enlarged map
const GAMMA = 0.7;  // of light: one bright place leaves the others visible
const SMOOTH = 0.6, SOFT = 1;  // standard deviation of colours and of light between patches, in patches

function colour(value) {  // 0 to 1
  const place = Math.max(0, Math.min(1, value)) * (SCALE.length - 1), low = Math.min(Math.floor(place), SCALE.length - 2);
  return SCALE[low].map((c, i) => c + (SCALE[low + 1][i] - c) * (place - low));
}

// For each of `pixels` places, how much each of n cells counts, by their distance; 0: that of the cell alone.
function shares(pixels, n, deviation) {
  return Array.from({ length: pixels }, (_, pixel) => {
    const place = ((pixel + 0.5) / pixels) * n - 0.5;
    const weights = Array.from({ length: n }, (_, cell) =>
      deviation ? Math.exp(-((place - cell) ** 2) / (2 * deviation ** 2)) : Number(Math.round(place) === cell));
    const sum = weights.reduce((a, b) => a + b, 0) || 1;
    return weights.map((weight) => weight / sum);
  });
}

// A map, rows of numbers, enlarged: {width, height, values}, from 0 to its maximum, 1.
function enlarge(map, deviation) {
  const rows = map.length, columns = map[0].length, longer = Math.max(rows, columns);
  const height = Math.max(1, Math.round((SIDE * rows) / longer));
  const width = Math.max(1, Math.round((SIDE * columns) / longer));
  const across = shares(width, columns, deviation), down = shares(height, rows, deviation);
  const wide = map.map((row) => across.map((weights) => weights.reduce((sum, w, i) => sum + w * row[i], 0)));
  const values = new Float32Array(width * height);
  let most = 0;
  down.forEach((weights, y) => {
    for (let x = 0; x < width; x++) {
      let sum = 0;
      for (let r = 0; r < rows; r++) if (weights[r] > 1e-4) sum += weights[r] * wide[r][x];
      values[y * width + x] = sum;
      most = Math.max(most, sum);
    }
  });
  if (most > 0) for (let i = 0; i < values.length; i++) values[i] = Math.max(0, values[i] / most);
  return { width, height, values };
}

/** Draw a map on a canvas of its own: in colours, or as light, grey from `least`, where it is lowest, to white. */
export function paint(map, { smooth = true, light = false, least = 0 } = {}) {
  const { width, height, values } = enlarge(map, smooth ? (light ? SOFT : SMOOTH) : 0);
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const pen = canvas.getContext("2d"), pixels = pen.createImageData(width, height);
  const low = values.reduce((a, b) => Math.min(a, b), 1);
  values.forEach((value, i) => {
    const share = Math.max(0, value - low) / Math.max(1 - low, 1e-9);
    const grey = 255 * (least + (1 - least) * share ** GAMMA);
    pixels.data.set(light ? [grey, grey, grey, 255] : [...colour(value), 255], 4 * i);
  });
  pen.putImageData(pixels, 0, 0);
  return canvas;
}
