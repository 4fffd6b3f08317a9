// A curve of training: points over steps, as an SVG that names its ends in words.
const NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 320, HEIGHT = 120, LEFT = 38, BELOW = 20, AROUND = 6;

function drawn(tag, attributes, words = "") {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = words;
  return made;
}

/** Return the SVG of `points`, [step, value] by step. `top`: the highest value; `word`: writes a value. */
export function curve(title, points, { steps, top = null, word }) {
  const last = points.at(-1);
  const label = `${title}: ${word(points[0][1])} at step ${points[0][0]}, ${word(last[1])} at step ${last[0]}`;
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "curve", role: "img", "aria-label": label });
  const most = top ?? above(Math.max(...points.map(([, value]) => value)));
  const mostSteps = Math.max(steps ?? 0, last[0], 1);
  const x = (step) => LEFT + ((WIDTH - LEFT - AROUND) * step) / mostSteps;
  const y = (value) => AROUND + (HEIGHT - BELOW - AROUND) * (1 - Math.min(1, Math.max(0, value / most)));
  for (const value of [0, most / 2, most]) {
    svg.append(
      drawn("line", { class: "rule", x1: LEFT, x2: WIDTH - AROUND, y1: y(value), y2: y(value) }),
      drawn("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, word(value)));
  }
  svg.append(
    drawn("text", { x: LEFT, y: HEIGHT - 4 }, "0"),
    drawn("text", { x: WIDTH - AROUND, y: HEIGHT - 4, "text-anchor": "end" }, `${mostSteps} steps`),
    drawn("polyline", { class: "line", points: points.map(([step, value]) => `${x(step)},${y(value)}`).join(" ") }),
    drawn("circle", { class: "dot", cx: x(last[0]), cy: y(last[1]), r: 3.5 }));
  return svg;
}

/** The next number above a value whose half is easy to read. */
function above(value) {
  if (!(value > 0)) return 1;
  const digit = 10 ** Math.floor(Math.log10(value));
  return digit < value / 4 ? 2 * digit * Math.ceil(value / digit / 2) : 0.4 * digit * Math.ceil(value / digit / 0.4);
}
