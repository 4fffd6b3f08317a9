// Requests to the server: its key, its token, its errors in words. docs/serving.md describes them.

/** An answer that is not 2xx: the status, and the server's words. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const TRIES = 4;
const LONGEST_WAIT = 15;  // seconds
let key = stored();
let token = "";
let askForKey = async () => null;

function stored() {
  try {
    return sessionStorage.getItem("key") ?? "";
  } catch {
    return "";
  }
}

/** Ask `/v1/session`, and a person for the key if the server has one. `ask(wrong)` returns the key that was typed. */
export async function begin(ask) {
  askForKey = ask;
  const session = await json("/v1/session");
  token = session.token;
  return session;
}

/** Send a request, again if the server is busy; return its answer, or throw a Refusal. */
export async function request(path, { method = "GET", body = null, type = null, signal = undefined } = {}) {
  const headers = {};
  for (let tried = 1; ; tried++) {
    if (type) headers["content-type"] = type;
    if (key) headers.authorization = `Bearer ${key}`;
    if (token && method !== "GET") headers["x-vitrail-token"] = token;
    let answer;
    try {
      answer = await fetch(path, { method, body, headers, signal, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refusal(0, "The server does not answer. It may have been stopped.");
    }
    if (answer.ok) return answer;
    if (answer.status === 401) {
      const typed = await askForKey(Boolean(key));
      if (typed === null) throw new Refusal(401, "This server needs a key.");
      key = typed;
      try { sessionStorage.setItem("key", key); } catch { /* kept until the page is closed */ }
      continue;
    }
    if (answer.status === 503 && tried < TRIES) {
      const seconds = Math.min(Number(answer.headers.get("retry-after")) || 1, LONGEST_WAIT);
      await new Promise((done) => setTimeout(done, 1000 * seconds));
      continue;
    }
    throw new Refusal(answer.status, await words(answer));
  }
}

async function words(answer) {
  try {
    return (await answer.json()).error;
  } catch {
    return `The server answered with status ${answer.status}.`;
  }
}

/** Send a request; return the JSON of its answer. */
export const json = async (path, options) => (await request(path, options)).json();

/** Send an object as JSON. */
export const send = (path, content, method = "POST") =>
  json(path, { method, body: JSON.stringify(content), type: "application/json" });

/** Send one image to an endpoint of a model. */
export const sendImage = (model, endpoint, blob, signal) =>
  json(`/v1/models/${encodeURIComponent(model)}/${endpoint}`, {
    method: "POST", body: blob, type: "application/octet-stream", signal,
  });

/** The address of a file of the server for an element; as an element cannot send the key, of a copy if there is one. */
export async function address(path, copy = Boolean(key)) {
  return copy ? URL.createObjectURL(await (await request(path)).blob()) : path;
}
