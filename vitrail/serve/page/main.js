// Where the page begins: the session, the models, the two views.
import { at, complain } from "./element.js";
import { filesOf } from "./intake.js";
import { addPasted, startLearn } from "./learn.js";
import { offer, startLook, take, useModel } from "./look.js";
import { Refusal, begin, json } from "./server.js";

const servedModels = async () => (await json("/v1/models")).models;

/** Show the view that the address names: #look or #learn. */
function route() {
  const skipped = location.hash === "#main";  // by the link to the content: the view stays
  const learning = skipped ? !at("learn").hidden : location.hash === "#learn";
  at("look").hidden = learning;
  at("learn").hidden = !learning;
  for (const [id, here] of [["go-look", !learning], ["go-learn", learning]]) {
    if (here) at(id).setAttribute("aria-current", "page");
    else at(id).removeAttribute("aria-current");
  }
  document.title = learning ? "Learn – vitrail" : "vitrail";
}

/** Ask a person for the key of the server; null: they do not have it. */
function askForKey(wrong) {
  const dialog = at("key");
  at("key-problem").textContent = wrong ? "This is not the key." : "";
  at("key-value").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "use" ? at("key-value").value.trim() : null), {
      once: true,
    });
  });
}

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const current = () => document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  const name = () => {
    at("theme").setAttribute("aria-label", current() === "dark" ? "Use light colours" : "Use dark colours");
  };
  at("theme").addEventListener("click", () => {
    const theme = current() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("theme", theme); } catch { /* until the page is closed */ }
    name();
  });
  dark.addEventListener("change", name);
  name();
}

function startPaste() {
  document.addEventListener("paste", async (event) => {
    if (event.target.matches("input[type=text], input[type=password]")) return;
    const files = await filesOf(event.clipboardData);
    if (!files.length) return;
    if (at("learn").hidden) take(files);
    else addPasted(files);
  });
}

async function start() {
  startTheme();
  for (const type of ["dragover", "drop"]) {
    document.addEventListener(type, (event) => event.preventDefault());  // else a file that misses replaces the page
  }
  addEventListener("hashchange", () => {
    route();
    at("main").focus({ preventScroll: true });
    scrollTo({ top: 0 });
  });
  route();
  // What no part of the page expects, it says here: as that the server was stopped.
  addEventListener("unhandledrejection", (event) => {
    if (!(event.reason instanceof Refusal)) return;
    event.preventDefault();
    complain(event.reason);
  });
  const session = await begin(askForKey), models = await servedModels();
  startLook(models);
  await startLearn(session, models, {
    changed: async () => offer(await servedModels()),
    use: async (name) => {
      offer(await servedModels());
      useModel(name);
      location.hash = "look";
    },
  });
  startPaste();
  document.addEventListener("visibilitychange", async () => {
    if (!document.hidden) offer(await servedModels());  // they may have changed meanwhile
  });
  at("version").textContent = `vitrail ${session.version}`;
  document.documentElement.classList.add("ready");
}

start();
