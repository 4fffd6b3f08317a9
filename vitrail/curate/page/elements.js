// Elements of the page. Names of classes and files, and reasons, come from strangers: they become text, never HTML.

const at = (id) => document.getElementById(id);
const findings = JSON.parse(at("data").textContent);
// Control characters and marks that change the direction of reading, as vitrail/runtime/log.py has them.
const UNSEEN = /[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]/gu;
const MOST = 4000;  // characters of one text

function visible(text) {
  const shown = text.length > MOST ? `${text.slice(0, MOST / 2)} ... ${text.slice(-MOST / 2)}` : text;
  return shown.replace(UNSEEN, (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);
}

/** Make an element: attributes by name, then children, elements or text. */
function element(tag, attributes = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") created.addEventListener(name, value);
    else if (name === "class") created.className = value;
    else created.setAttribute(name, value);
  }
  created.append(...children.filter((child) => child !== null));
  return created;
}

/** A name of strangers, which may be written from right to left; long ones may break at marks. */
const named = (text, attributes = {}) => element("bdi", attributes,
  ...visible(text).split(/(?<=[_/.-])(?=\w)/).flatMap((word, i) => (i ? [element("wbr"), word] : [word])));

/** A path, whose parts are names, in order whatever they are written in. */
const path = (key) => element("span", { dir: "ltr" }, ...key.split("/").flatMap((part, i) => (i ? ["/", element("wbr"), named(part)] : [named(part)])));

/** A class without the WordNet number that names of ImageNet's classes may begin with. */
const readable = (name) => name.replace(/^n\d{8}[ _](?=.)/, "");

const count = (number) => number.toLocaleString("en");
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)}%`;

const NAMESPACE = "http://www.w3.org/2000/svg";
function drawn(tag, attributes, words = "") {
  const created = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, value);
  created.textContent = words;
  return created;
}

function announce(words) {
  at("announcement").textContent = words;
}

function complain(words) {
  at("problem").textContent = words;
  at("problem").hidden = !words;
}
