// A chosen patch and those like it. The features of an image are the grey values of a small picture: a row for each
// patch, a column for each of the dimensions that were kept; 128 is 0. They have length 1: products are cosines.
"use strict";
{
  const data = JSON.parse(document.getElementById("patch-data").textContent);
  const at = (id) => document.getElementById(id);
  const [rows, columns] = data.grid, D = data.dimensions, chosen = { row: rows >> 1, column: columns >> 1 };

  const opened = (uri) => new Promise((done, failed) => {
    const image = new Image();
    image.onload = () => done(image);
    image.onerror = failed;
    image.src = uri;
  });

  function featuresOf(image) {
    const canvas = document.createElement("canvas");
    canvas.width = D;
    canvas.height = rows * columns;
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    pen.drawImage(image, 0, 0);
    const grey = pen.getImageData(0, 0, D, rows * columns).data, features = [];
    for (let p = 0; p < rows * columns; p++) {
      features.push(Float32Array.from({ length: D }, (_, d) => (grey[4 * (p * D + d)] - 128) / 127 * data.most));
    }
    return features;
  }

  function colour(value) {  // 0 to 1, by the same steps as the figures
    const place = value * (data.scale.length - 1), low = Math.min(Math.floor(place), data.scale.length - 2);
    return data.scale[low].map((c, i) => c + (data.scale[low + 1][i] - c) * (place - low));
  }

  const images = data.images.map(async (one) => {
    const [picture, grey] = await Promise.all([opened(one.picture), opened(one.features)]);
    return { name: one.name, picture, features: featuresOf(grey) };
  });

  function draw(canvas, one) {
    const by = Math.max(1, Math.round(448 / Math.max(one.picture.width, one.picture.height)));
    canvas.width = one.picture.width * by;
    canvas.height = one.picture.height * by;
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = by < 4;
    pen.drawImage(one.picture, 0, 0, canvas.width, canvas.height);
    return pen;
  }

  function frame(canvas, pen, row, column) {
    const box = [column * canvas.width / columns, row * canvas.height / rows, canvas.width / columns, canvas.height / rows];
    pen.lineWidth = 4;
    pen.strokeStyle = "#000";
    pen.strokeRect(...box);
    pen.lineWidth = 2;
    pen.strokeStyle = "#fff";
    pen.strokeRect(...box);
  }

  async function show() {
    const number = Number(at("patch-image").value), other = Number(at("patch-other").value);
    const [one, two] = await Promise.all([images[number], images[other]]);
    const place = chosen.row * columns + chosen.column, f = one.features[place];
    const alike = two.features.map((g) => g.reduce((sum, value, d) => sum + value * f[d], 0));
    const own = number === other ? place : -1;  // the patch itself is no answer
    const others = alike.map((value, p) => (p === own ? -2 : value));
    const most = Math.max(...others), best = others.indexOf(most), least = Math.min(...alike);
    const small = document.createElement("canvas");
    small.width = columns;
    small.height = rows;
    const smallPen = small.getContext("2d"), pixels = smallPen.createImageData(columns, rows);
    alike.forEach((value, p) => {
      const share = Math.min(1, Math.max(0, (value - least) / Math.max(most - least, 1e-6)));
      pixels.data.set([...colour(share), 255], 4 * p);
    });
    smallPen.putImageData(pixels, 0, 0);
    frame(at("patch-view"), draw(at("patch-view"), one), chosen.row, chosen.column);
    const canvas = at("patch-alike"), pen = draw(canvas, two);
    pen.globalAlpha = 0.75;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(small, 0, 0, canvas.width, canvas.height);
    pen.globalAlpha = 1;
    frame(canvas, pen, Math.floor(best / columns), best % columns);
    const said = `Patch in row ${chosen.row + 1}, column ${chosen.column + 1} of ${one.name}; most alike in ${two.name}: ` +
      `row ${Math.floor(best / columns) + 1}, column ${best % columns + 1}, cosine ${most.toFixed(2)}; ` +
      `the least alike has ${least.toFixed(2)}.`;
    at("patch-said").textContent = said;
    at("patch-view").setAttribute("aria-label", `${one.name}: choose a patch with the arrow keys`);
    canvas.setAttribute("aria-label", said);
  }

  at("patch-view").addEventListener("click", (event) => {
    const box = at("patch-view").getBoundingClientRect();
    chosen.row = Math.min(rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * rows)));
    chosen.column = Math.min(columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * columns)));
    show();
  });
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  at("patch-view").addEventListener("keydown", (event) => {
    if (!(event.key in steps)) return;
    event.preventDefault();  // the page does not scroll
    const [down, across] = steps[event.key];
    chosen.row = Math.min(rows - 1, Math.max(0, chosen.row + down));
    chosen.column = Math.min(columns - 1, Math.max(0, chosen.column + across));
    show();
  });
  for (const id of ["patch-image", "patch-other"]) at(id).addEventListener("input", show);
  if (data.images.length > 1) at("patch-other").value = "1";
  show();
}
