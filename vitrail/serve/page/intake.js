// How photographs come in: dropped, pasted, chosen, taken with the camera.
import { at, element } from "./element.js";

const TYPES = "image/jpeg,image/png,image/webp,image/gif,image/bmp,image/tiff,image/avif";
const SIDE = 1280;  // pixels across that are asked of a camera

/** The files that were dropped or pasted; those in folders too, as far as the browser shows them. */
export async function filesOf(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const files = [...transfer.files];  // before the first await: then the transfer is empty
  if (!entries.some((entry) => entry.isDirectory)) return files.filter(isImage);
  const found = [];
  for (const entry of entries) await collect(entry, found);
  return found.filter(isImage);
}

async function collect(entry, found) {
  if (entry.isFile) {
    found.push(await new Promise((done, failed) => entry.file(done, failed)));
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!some.length) return;
    for (const one of some) await collect(one, found);
  }
}

const isImage = (file) => file.type.startsWith("image/") || file.type === "";

/** Let `zone` take files that are dropped on it; `take` gets them. */
export function acceptDrops(zone, take) {
  let inside = 0;
  const hasFiles = (event) => [...event.dataTransfer.types].includes("Files");
  zone.addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    inside++;
    zone.classList.add("over");
  });
  zone.addEventListener("dragover", (event) => {
    if (hasFiles(event)) event.preventDefault();
  });
  zone.addEventListener("dragleave", () => {
    inside = Math.max(0, inside - 1);
    if (!inside) zone.classList.remove("over");
  });
  zone.addEventListener("drop", async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    inside = 0;
    zone.classList.remove("over");
    const files = await filesOf(event.dataTransfer);
    if (files.length) take(files);
  });
}

/** A button that opens the dialog for files. */
export function chooser(words, take, { multiple = false, capture = false, ...attributes } = {}) {
  const input = element("input", { type: "file", accept: TYPES, multiple, hidden: true, tabIndex: -1 });
  if (capture) input.setAttribute("capture", "environment");
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = "";
    if (files.length) take(files);
  });
  const press = element("button", { type: "button", click: () => input.click(), ...attributes }, words);
  return element("span", { class: "chooser" }, press, input);
}

/** A button for the camera: in a dialog, or the phone's own; null where there is neither. */
export function cameraButton(words, take, attributes = {}) {
  if (navigator.mediaDevices?.getUserMedia) {
    return element("button", { type: "button", click: () => openCamera(take), ...attributes }, words);
  }
  return matchMedia("(pointer: coarse)").matches ? chooser(words, take, { capture: true, ...attributes }) : null;
}

/** Show the camera in a dialog; every press of its button takes a photograph. */
async function openCamera(take) {
  const dialog = at("camera"), video = at("camera-picture"), problem = at("camera-problem");
  const shutter = at("camera-take");
  problem.textContent = "";
  shutter.disabled = true;
  dialog.showModal();
  let stream = null;
  const close = () => stream?.getTracks().forEach((track) => track.stop());
  dialog.addEventListener("close", close, { once: true });
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: SIDE } });
  } catch (error) {
    problem.textContent = error.name === "NotAllowedError"
      ? "The browser does not allow the camera on this page."
      : "No camera can be used.";
    return;
  }
  if (!dialog.open) return close();
  video.srcObject = stream;
  await video.play();
  shutter.disabled = false;
  let taken = 0;
  shutter.onclick = async () => {
    const canvas = element("canvas", { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext("2d").drawImage(video, 0, 0);
    const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
    if (await take([new File([blob], `camera ${++taken}.jpg`, { type: "image/jpeg" })]) !== "more") dialog.close();
    else problem.textContent = `${taken} taken.`;
  };
}
