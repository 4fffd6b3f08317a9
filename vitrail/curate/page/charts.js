// What was found about the data as a whole: confused classes, the learning curve, shortcuts.

const FEW_PAIRS = 8;
const ORIGINS = { "file size": "File size", border: "Border", size: "Image size", metadata: "Metadata" };

/** The confused pairs as bars; pressing one calls `choose` with its classes. */
function showPairs(choose) {
  const { pairs } = findings;
  at("pairs").hidden = !pairs.length;
  const rows = pairs.map(({ classes: [one, two], confused, of }) => {
    const names = element("span", {}, named(readable(one)), element("span", { class: "soft" }, " and "), named(readable(two)));
    const button = element("button", { type: "button", click: () => choose([one, two]) }, names,
      element("span", { class: "amount" }, `${count(confused)} of ${count(of)}`));
    button.style.backgroundSize = `${(100 * confused) / Math.max(of, 1)}% 100%`;
    return element("li", {}, button);
  });
  const show = (number) => {
    at("pair-list").replaceChildren(...rows.slice(0, number));
    at("more-pairs").hidden = number >= rows.length;
    at("more-pairs").textContent = `Show all ${count(rows.length)} pairs`;
  };
  at("more-pairs").addEventListener("click", () => {
    show(rows.length);
    rows[FEW_PAIRS].firstChild.focus();
  });
  show(FEW_PAIRS);
}

/** The learning curve with its interval. The images of a class are on a logarithmic scale. */
function showCurve() {
  const { curve } = findings;
  at("curve").hidden = !curve?.accuracy.length;
  if (!curve?.accuracy.length) return;
  const [width, height, left, below, around] = [360, 200, 40, 34, 8], n = curve.images_per_class;
  const [first, last] = [Math.log(Math.max(n[0], 1e-9)), Math.log(Math.max(n.at(-1), 1e-9))];
  const least = Math.max(0, Math.floor(10 * Math.min(...curve.low)) / 10);
  const most = Math.min(1, Math.max(least + 0.1, Math.ceil(10 * Math.max(...curve.high)) / 10));
  const x = (images) => left + around + (width - left - 4 * around) * (last > first ? (Math.log(Math.max(images, 1e-9)) - first) / (last - first) : 0.5);
  const y = (accuracy) => around + (height - below - around) * (1 - (accuracy - least) / (most - least));
  const points = (values) => n.map((images, i) => `${x(images).toFixed(1)},${y(values[i]).toFixed(1)}`);
  const words = n.map((images, i) => `${percent(curve.accuracy[i])} with ${+images.toFixed(1)} images a class`);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, class: "curve", role: "img", "aria-label": `Accuracy: ${words.join(", ")}` });
  for (const value of [least, (least + most) / 2, most]) {
    svg.append(drawn("line", { class: "rule", x1: left, x2: width - around, y1: y(value), y2: y(value) }),
      drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, percent(value)));
  }
  svg.append(drawn("polygon", { class: "band", points: [...points(curve.high), ...points(curve.low).reverse()].join(" ") }),
    drawn("polyline", { class: "line", points: points(curve.accuracy).join(" ") }));
  let end = -Infinity;
  n.forEach((images, i) => {
    svg.append(drawn("circle", { class: "dot", cx: x(images), cy: y(curve.accuracy[i]), r: 3.5 }));
    if (x(images) - end < 30) return;  // numbers do not touch
    end = x(images);
    svg.append(drawn("text", { x: end, y: height - below + 16, "text-anchor": "middle" }, String(+images.toFixed(1))));
  });
  svg.append(drawn("text", { x: (left + width) / 2, y: height - 3, "text-anchor": "middle" }, "images of a class"));
  const caption = element("p", {}, visible(curve.more));
  at("curve-chart").replaceChildren(svg, caption, element("p", { class: "soft" }, "Accuracy by the number of images; the band is its 95% interval."));
}

/** Each shortcut: accuracy by it alone, with its interval, and a mark at chance. */
function showShortcuts() {
  const { shortcuts } = findings;
  at("shortcuts").hidden = !shortcuts.length;
  const rows = shortcuts.map(({ from, accuracy, interval: [low, high], chance, reason }) => {
    const across = (share) => `${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%`;
    const scale = element("div", { class: "scale", "aria-hidden": "true" }, element("i", { class: "interval" }), element("i", { class: "accuracy" }), element("i", { class: "chance" }));
    const [range, dot, tick] = scale.children;
    range.style.left = across(low);
    range.style.width = `${(100 * Math.max(0, Math.min(1, high) - Math.max(0, low))).toFixed(2)}%`;
    dot.style.left = across(accuracy);
    tick.style.left = across(chance);
    const amount = element("span", { class: "amount" }, element("strong", {}, percent(accuracy)), ` (${percent(low)} to ${percent(high)})`);
    return element("div", { class: "shortcut" }, element("div", { class: "row" }, element("h3", {}, ORIGINS[from]), amount), scale, element("p", { class: "soft" }, `By chance ${percent(chance)}. `, visible(reason)));
  });
  at("shortcut-list").replaceChildren(element("p", { class: "soft" }, "How often the class can be told from this alone. Far above chance, a model may learn it in place of what the images show."), ...rows);
}
