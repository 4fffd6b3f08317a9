// Elements of the page. Names of classes, files and models come from strangers: they become text, never HTML.

/** Make an element: attributes by name, functions as listeners of events, then children, elements or text. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (name === "class") made.className = value;
    else if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** The element of the page with this id. */
export const at = (id) => document.getElementById(id);

let number = 0;
/** A name for an id or a group of radio buttons that nothing else on the page has. */
export const unique = (prefix) => `${prefix}-${++number}`;

/** Read a sentence to those who listen to the page. */
export function announce(words) {
  at("announcement").textContent = words;
}

/** Say at the top of the page what went wrong, until the next click. */
export function complain(error) {
  at("problem").textContent = error.message;
  at("problem").hidden = false;
  scrollTo({ top: 0 });
  addEventListener("click", () => { at("problem").hidden = true; }, { once: true, capture: true });
}

/** A share from 0 to 1 as a person reads it: never rounded to nothing or to all. */
export function percent(share) {
  const rounded = (100 * share).toFixed(share < 0.0995 && share > 0 ? 1 : 0);
  if (share > 0 && share < 0.0005) return "< 0.1\u2009%";
  if (share < 1 && share >= 0.995) return "> 99\u2009%";
  return `${rounded}\u2009%`;
}

/** The same, to be read aloud. */
export const spoken = (share) =>
  percent(share).replace("\u2009%", " percent").replace("< ", "less than ").replace("> ", "more than ");

/** A button whose press is answered by a promise: it cannot be pressed again meanwhile. */
export function button(words, press, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, words);
  made.addEventListener("click", async () => {
    if (made.getAttribute("aria-disabled") === "true") return;
    made.setAttribute("aria-disabled", "true");
    try {
      await press();
    } finally {
      made.removeAttribute("aria-disabled");
    }
  });
  return made;
}
