// Elements and numbers. Text from the service only ever becomes textContent.

export const find = (id) => document.getElementById(id);

export function make(tag, values = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(values)) {
    if (key === "text") element.textContent = value;
    else if (key === "onclick") element.addEventListener("click", value);
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function formatNumber(value, digits = 3) {
  if (!isNumber(value)) return "–";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(1);
  if (Math.abs(value) >= 10000) return Math.round(value).toLocaleString("en");
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 4 });
}

export const formatShare = (value, digits = 3) => (isNumber(value) ? `${(100 * value).toFixed(digits > 2 ? 1 : 0)} %` : "–");

export function formatAgo(seconds) {
  if (!isNumber(seconds)) return "never";
  if (seconds < 2) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} d ago`;
}

export function formatTime(unix) {
  const time = new Date(1000 * unix);
  const clock = time.toLocaleTimeString("en-GB");
  return time.toDateString() === new Date().toDateString() ? clock : `${time.toLocaleDateString("en-CA")} ${clock}`;
}

// The label of an answer: an image that is none of the classes has a probability and no label.
export const nameLabel = (label, probability) => label ?? (isNumber(probability) ? "none of the classes" : "nothing yet");
export const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

// A label with a bar and a number.
export function makeRow(label, part, text) {
  const fill = make("i");
  fill.style.width = `${(100 * part).toFixed(1)}%`;
  return make("div", { class: "row" }, make("span", { text: label, title: label }), make("span", { class: "bar" }, fill), make("span", { text: text }));
}

// Draws a small copy of a frame, WebP in base64, and gives it as an image.
export async function drawFrame(canvas, b64) {
  const bytes = Uint8Array.from(atob(b64), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes]));
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  return bitmap;
}

// The colour of a health, as the style sheet names it: "rolled back" is --rolled-back.
export const HEALTHS = ["ok", "suspected", "alarm", "bad", "rolled back", "reset", "paused", "unwatched", "damaged"];
export const nameColour = (health) => (HEALTHS.includes(health) ? `--${health.replace(" ", "-")}` : "--faint");
export const setDot = (element, health) => element.style.setProperty("--dot", `var(${nameColour(health)})`);
