// How photographs come in: dropped, pasted, chosen, taken with the camera.
import { at, element } from "./element.js";

const TYPES = "image/jpeg,image/png,image/webp,image/gif,image/bmp,image/tiff,image/avif";
const SIDE = 1280;  // pixels across that are asked of a camera

const entriesOf = (transfer) => [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);

/** The files that were dropped or pasted, and the images in folders. The server says of a file that it is no image. */
export async function filesOf(transfer) {
  const entries = entriesOf(transfer), files = [...transfer.files];  // before the first await: then the transfer is empty
  if (!entries.some((entry) => entry.isDirectory)) return files;
  return (await Promise.all(entries.map(filesIn))).flat();
}

/** The folders that were dropped, [name, files] each; of one folder of folders: those inside. */
export async function foldersOf(transfer) {
  let folders = entriesOf(transfer).filter((entry) => entry.isDirectory);
  if (folders.length === 1) {
    const inside = (await children(folders[0])).filter((entry) => entry.isDirectory);
    if (inside.length) folders = inside;
  }
  const read = await Promise.all(folders.map(async (folder) => [folder.name, await filesIn(folder)]));
  return read.filter(([, files]) => files.length);
}

/** All images in an entry of a file system. */
async function filesIn(entry) {
  if (entry.isDirectory) return (await Promise.all((await children(entry)).map(filesIn))).flat();
  return [await new Promise((done, failed) => entry.file(done, failed))].filter(isImage);
}

async function children(folder) {
  const reader = folder.createReader(), found = [];
  for (;;) {  // a reader returns some at a time, at last none
    const some = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!some.length) return found;
    found.push(...some);
  }
}

const isImage = (file) => file.type.startsWith("image/") || file.type === "";

/** Let `zone` take what is dropped on it; `take` gets what `read` finds in it, if that is anything. */
export function acceptDrops(zone, take, read = filesOf) {
  let inside = 0;
  const leave = () => {
    inside = 0;
    zone.classList.remove("over");
  };
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
    if (--inside <= 0) leave();
  });
  addEventListener("drop", leave, { capture: true });  // wherever it is: on a zone inside this one, too
  zone.addEventListener("drop", async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    const found = await read(event.dataTransfer);
    if (found.length) take(found);
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
