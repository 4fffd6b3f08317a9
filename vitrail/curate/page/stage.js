// One image after the other: the picture, what was found, its neighbours and copies, and the strip of those around it.

const KINDS = {
  label: "label error", outlier: "outlier", duplicate: "copy", unreadable: "unreadable", blur: "blurred", dark: "dark",
  bright: "bright", odd_size: "odd size",
};
const MARKS = { keep: "\u2713", relabel: "\u2192", drop: "\u2715" };
const AROUND = 30;  // images of the strip before and after the one that is shown
const pictured = new Set(findings.thumbnails);
const places = new Map();  // key -> index, of every image that is named
for (const one of findings.findings) {
  places.set(one.key, one.index);
  for (const near of one.neighbours) places.set(near.key, near.index);
}

function picture(index, words, attributes = {}) {
  if (!pictured.has(index)) return element("span", { class: "blank", role: "img", "aria-label": `${words}: no picture` }, "no picture");
  return element("img", { src: `thumbnails/${String(index).padStart(6, "0")}.jpg`, alt: words, ...attributes });
}

function verdict(index) {
  const decision = decisions.get(index);
  if (!decision) return "To review";
  return { keep: "Kept", drop: "Dropped", relabel: `Relabelled to ${visible(readable(decision.label ?? ""))}` }[decision.action];
}

/** Labels of the nearest images, the most frequent first. */
function labelsAround(image) {
  const counts = new Map();
  for (const one of image.findings) for (const near of one.neighbours) counts.set(near.label, (counts.get(near.label) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([label]) => label);
}

/** Show an image, the `place`th of `shown`. */
function showImage(image, place, shown) {
  const decision = decisions.get(image.index), { suggested } = image;
  at("place").replaceChildren(element("span", {}, `${count(place + 1)} of ${count(shown.length)}`), " ", element("span", { class: "key", title: visible(image.key) }, path(image.key)));
  at("verdict").textContent = `${MARKS[decision?.action] ?? ""} ${verdict(image.index)}`.trim();
  at("verdict").dataset.action = decision?.action ?? "";
  const all = [...new Set(image.findings.map((one) => one.copy_of).filter((key) => key !== null))];
  const copies = all.filter((key) => pictured.has(places.get(key)));  // others are in another split
  at("pictures").replaceChildren(
    element("figure", {}, picture(image.index, visible(image.key)), copies.length ? element("figcaption", {}, "This image") : null),
    ...copies.map((key) => element("figure", {}, picture(places.get(key), visible(key)), element("figcaption", {}, "Copy of ", path(key)))));
  at("pictures").classList.toggle("several", copies.length > 0);
  const label = decision?.action === "relabel" ? element("s", {}, named(readable(image.label))) : named(readable(image.label));
  const rows = [["Label", label]];
  if (decision?.action === "relabel") rows.push(["Now", named(readable(decision.label))]);
  if (suggested !== null && decision?.label !== suggested) rows.push([image.by === "duplicate" ? "Its copy" : "Looks like", named(readable(suggested))]);
  for (const key of all) if (!copies.includes(key)) rows.push(["Copy of", path(key), "file"]);
  at("labels").replaceChildren(...rows.map(([name, value, kind = ""]) =>
    element("div", { class: kind }, element("dt", {}, name), element("dd", {}, value))));
  at("reasons").replaceChildren(...image.findings.map((one) => element("li", {},
    element("span", { class: "kind" }, KINDS[one.kind]), " ", element("span", { dir: "auto" }, visible(one.reason)))));
  at("relabel").hidden = suggested === null;
  at("relabel").replaceChildren(element("span", {}, "Relabel to ", named(readable(suggested ?? ""))), element("kbd", { "aria-hidden": "true" }, "R"));
  for (const action of ACTIONS) {
    const done = decision?.action === action && (action !== "relabel" || decision.label === suggested);
    at(action).setAttribute("aria-pressed", String(done));
  }
  at("undo").setAttribute("aria-disabled", String(!before.length));
  const seen = new Map();
  for (const one of image.findings) for (const near of one.neighbours) if (!copies.includes(near.key)) seen.set(near.index, near);
  at("near").hidden = !seen.size;
  at("near-note").hidden = ![...seen.values()].some((near) => near.label === suggested);
  at("neighbours").replaceChildren(...[...seen.values()].map((near) => {
    const kind = near.label === image.label ? "same" : near.label === suggested ? "suggested" : "other";
    return element("li", { class: kind }, picture(near.index, visible(near.key), { loading: "lazy", title: visible(near.key) }),
      named(readable(near.label), { class: "name", title: visible(near.label) }), element("span", { class: "soft" }, near.similarity.toFixed(2)));
  }));
  showStrip(place, shown);
}

function showStrip(place, shown) {
  const first = Math.max(0, place - AROUND), around = shown.slice(first, place + AROUND + 1);
  at("strip").replaceChildren(...around.map((image, i) => {
    const number = first + i, action = decisions.get(image.index)?.action ?? "";
    const words = `${number + 1}: ${visible(image.key)}, ${verdict(image.index)}`;
    const button = element("button", { type: "button", "aria-label": words, title: visible(image.key), click: () => go(number) },
      picture(image.index, "", { loading: "lazy" }), action ? element("span", { class: "tick", "data-action": action, "aria-hidden": "true" }, MARKS[action]) : null);
    if (number === place) button.setAttribute("aria-current", "true");
    return element("li", {}, button);
  }));
  const current = at("strip").querySelector("[aria-current]");
  if (current) at("strip").scrollLeft = current.parentElement.offsetLeft - (at("strip").clientWidth - current.clientWidth) / 2;
}
