// Any class by typing letters of its name: a dialog with a field and a list, which arrow keys go through.

const MOST_CHOICES = 60;
const plain = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
const searched = findings.classes.map((name) => [name, plain(readable(name))]);
let choices = [], chosen = 0, take = null;

/** Ask for a class; `likely` are offered first; `then` gets the one that is taken. */
function askForClass(likely, then) {
  take = (name) => {
    at("choice").close();
    then(name);
  };
  at("choice-text").value = "";
  offer(likely);
  at("choice-text").oninput = () => offer(likely);
  at("choice").showModal();
  at("choice-text").focus();
}

function offer(likely) {
  const letters = plain(at("choice-text").value.trim());
  const order = new Map([...new Set(likely)].map((name, i) => [name, i])), n = order.size + 1;
  const rank = (name, text) => (letters && !text.startsWith(letters) ? n : 0) + (order.get(name) ?? n - 1);
  const all = searched.filter(([, text]) => text.includes(letters)).map(([name, text]) => [rank(name, text), name]);
  all.sort((a, b) => a[0] - b[0]);  // stable: else in the order of the classes
  choices = all.slice(0, MOST_CHOICES).map(([, name]) => name);
  at("choice-list").replaceChildren(...choices.map((name, i) =>
    element("li", { role: "option", id: `choice-${i}`, click: () => take(name) }, named(readable(name)))));
  const rest = all.length - choices.length;
  at("choice-count").textContent = !all.length ? "No class has these letters in its name." :
    rest ? `${count(rest)} more: type more letters.` : `${count(all.length)} ${all.length === 1 ? "class" : "classes"}`;
  mark(0);
}

function mark(number) {
  chosen = Math.max(0, Math.min(choices.length - 1, number));
  [...at("choice-list").children].forEach((one, i) => one.setAttribute("aria-selected", String(i === chosen)));
  if (choices.length) at("choice-text").setAttribute("aria-activedescendant", `choice-${chosen}`);
  else at("choice-text").removeAttribute("aria-activedescendant");
  at("choice-list").children[chosen]?.scrollIntoView({ block: "nearest" });
}

at("choice-text").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[event.key];
  if (step) mark(chosen + step);
  else if (event.key === "Enter" && choices.length) take(choices[chosen]);
  else return;
  event.preventDefault();
});
at("choice-close").addEventListener("click", () => at("choice").close());
