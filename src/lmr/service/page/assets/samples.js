// Samples: photographs that come with lmr, first as they are and then made worse, sent to a stream that adapts.

import { find, formatShare, make, plural } from "./dom.js";
import { ask, askJson, streamPath } from "./feed.js";

const [SIDE, COLUMNS] = [32, 50]; // of a photograph, in pixels; of the sheet, in photographs
const [ORDINARY, BAD, TOGETHER] = [96, 544, 16]; // images before and after the change, and in a request
const DRAWN = 128; // pixels of a side that are sent, so that a corruption is about as strong as on other images
const STRENGTH = 6; // of the corruption, where none is chosen

let sheet = null; // { bitmap, classes, labels }

async function readSheet() {
  const facts = await askJson("/assets/samples/cifar10_2000.json");
  const image = await ask("/assets/samples/cifar10_2000.webp");
  return { ...facts, bitmap: await createImageBitmap(await image.blob()) };
}

// Numbers of photographs in random order; only of classes that the service knows, if it knows two of them.
function choose(names) {
  const known = sheet.labels.map((_, number) => number).filter((number) => names.includes(sheet.classes[sheet.labels[number]]));
  const told = new Set(known.map((number) => sheet.labels[number])).size > 1;
  const numbers = told ? known : sheet.labels.map((_, number) => number);
  for (let last = numbers.length - 1; last > 0; last--) {
    const other = Math.floor(Math.random() * (last + 1));
    [numbers[last], numbers[other]] = [numbers[other], numbers[last]];
  }
  return { told, numbers };
}

async function draw(number, spoil) {
  const canvas = make("canvas", { width: DRAWN, height: DRAWN });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(sheet.bitmap, SIDE * (number % COLUMNS), SIDE * Math.floor(number / COLUMNS), SIDE, SIDE, 0, 0, DRAWN, DRAWN);
  spoil?.(context, canvas);
  return canvas;
}

// What came of the images of one part, as a sentence.
function describe(what, { count, changed, adapted, frozen }, told) {
  if (!count) return "";
  const gain = (100 * (adapted - frozen)) / count;
  const points = Math.abs(gain) < 0.05 ? "the same" : `${gain > 0 ? "+" : "−"}${Math.abs(gain).toFixed(1)} points`;
  const right = told ? `${formatShare(adapted / count)} right with adapting, ${formatShare(frozen / count)} without: ${points}` : "nobody knows what is right, as the service has other classes than these photographs";
  return `${what}, ${plural(count, "image")}: ${right}; adapting changed ${plural(changed, "answer")}.`;
}

// The button that sends them. ``spoil(name, strength)`` returns what makes a canvas worse.
export function makeSamples({ stream, hasStream, listClasses, spoil, showImage, showAnswer, report }) {
  let stopped = true;

  async function send(canvases) {
    const form = new FormData();
    for (const canvas of canvases) form.append("image", await new Promise((resolve) => canvas.toBlob(resolve, "image/png")), "sample.png");
    return askJson(`${streamPath(stream)}/images?compare=true`, { method: "POST", body: form });
  }

  async function sendPart(numbers, worse, told, tell) {
    const part = { count: 0, changed: 0, adapted: 0, frozen: 0, woke: null };
    for (let first = 0; first < numbers.length && !stopped; first += TOGETHER) {
      const chosen = numbers.slice(first, first + TOGETHER);
      const canvases = await Promise.all(chosen.map((number) => draw(number, worse)));
      showImage(canvases[0]);
      const { answers } = await send(canvases);
      showAnswer(answers[0]);
      answers.forEach(({ label, frozen }, place) => {
        const truth = told ? sheet.classes[sheet.labels[chosen[place]]] : null;
        part.count += 1;
        part.changed += label !== frozen;
        part.adapted += label === truth;
        part.frozen += frozen === truth;
      });
      const { status } = await askJson(streamPath(stream));
      if (status.adapting === "adapting") part.woke ??= part.count;
      find("sample-bar").value += chosen.length;
      tell(part.count, status.adapting);
    }
    return part;
  }

  async function start() {
    stopped = false;
    find("sample-result").replaceChildren();
    find("samples").textContent = "Stop";
    find("sample-bar").hidden = false;
    find("sample-bar").value = 0;
    const say = (text) => (find("sample-progress").textContent = text);
    try {
      say("Reading the photographs ...");
      sheet ??= await readSheet();
      await forget();
      const { told, numbers } = choose(listClasses());
      const [name, strength] = [find("corruption").value, Number(find("strength").value) || STRENGTH];
      const phases = { quiet: "the stream is quiet", looking: "the stream judges the change", adapting: "the stream adapts" };
      const tell = (what, total) => (count, phase) => say(`${count} of ${total} ${what} images looked at${phases[phase] ? `: ${phases[phase]}` : ""}.`);
      const clear = await sendPart(numbers.slice(0, ORDINARY), null, told, tell("ordinary", ORDINARY));
      const [first, second] = [ORDINARY, ORDINARY + BAD / 2].map((begin) => numbers.slice(begin, begin + BAD / 2));
      const worse = `bad (${name} ${strength})`;
      const bad = await sendPart(first, spoil(name, strength), told, tell(`first ${worse}`, BAD / 2));
      const later = await sendPart(second, spoil(name, strength), told, tell(`further ${worse}`, BAD / 2));
      const woke = bad.woke ? `It began to adapt within ${bad.woke} bad images.` : later.woke ? `It began to adapt within ${bad.count + later.woke} bad images.` : later.count ? "It did not adapt, as it did not notice that the images changed. Choose another corruption, or another strength." : "";
      const said = [describe("Ordinary", clear, told), describe(`With ${name} ${strength}`, bad, told), describe(`After these, with ${name} ${strength}`, later, told), woke].filter(Boolean);
      find("sample-result").replaceChildren(...said.map((text) => make("li", { text })));
      say(stopped ? "Stopped." : "Done.");
    } catch (error) {
      say("");
      report(error);
    }
    stopped = true;
    find("samples").textContent = "Send 640 samples";
    find("sample-bar").hidden = true;
  }

  // Forgets what the stream has learnt; it may not exist.
  async function forget() {
    if (hasStream(stream)) await ask(streamPath(stream), { method: "DELETE" });
  }

  find("samples").addEventListener("click", () => {
    if (stopped) start();
    else stopped = true;
  });
  find("sample-reset").addEventListener("click", async () => {
    stopped = true;
    try {
      await forget();
      find("sample-result").replaceChildren();
      find("sample-progress").textContent = `${stream} was reset: it begins with the next image.`;
      find("try-log").replaceChildren();
      find("try-phase").textContent = "";
    } catch (error) {
      report(error);
    }
  });

  return { stop: () => (stopped = true) };
}
