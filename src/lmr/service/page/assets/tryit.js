// Try it: an image from a file or the clipboard, made worse in the browser, answered by both models.

import { find, formatShare, make, makeRow, nameLabel } from "./dom.js";
import { askJson, NeedsToken, Refusal, streamPath } from "./feed.js";
import { makeSamples } from "./samples.js";

const OWN = "try-it"; // the stream of this view, which adapts; others only answer unless asked to
const LARGEST = 640; // pixels of a side that are sent at most
const TOLD = 12; // answers in the list
const PHASES = {
  quiet: "The stream is quiet: its images are like its first ones, or still clear to the frozen model, which answers them. Send some ordinary images first and many bad ones then, or choose a camera that adapts.",
  looking: "The stream has seen a change and judges it on 32 new images; until then the frozen model answers.",
  adapting: "The stream adapts to a change of its images.",
};

// Each takes the pixels of a canvas and a strength from 0 to 1.
const CORRUPTIONS = {
  noise(context, { width, height }, strength) {
    const data = context.getImageData(0, 0, width, height);
    for (let place = 0; place < data.data.length; place += 4) {
      for (let channel = 0; channel < 3; channel++) {
        const normal = Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
        data.data[place + channel] += 120 * strength * normal;
      }
    }
    context.putImageData(data, 0, 0);
  },
  blur(context, canvas, strength) {
    const { width, height } = canvas;
    const part = 1 / (1 + 9 * strength);
    const small = make("canvas", { width: Math.max(2, Math.round(width * part)), height: Math.max(2, Math.round(height * part)) });
    small.getContext("2d").drawImage(canvas, 0, 0, small.width, small.height);
    context.imageSmoothingQuality = "high";
    context.drawImage(small, 0, 0, width, height);
  },
  fog(context, { width, height }, strength) {
    context.fillStyle = `rgba(222, 226, 230, ${0.75 * strength})`;
    context.fillRect(0, 0, width, height);
    for (let cloud = 0; cloud < 12; cloud++) {
      const [x, y, size] = [((cloud * 0.37) % 1) * width, ((cloud * 0.61) % 1) * height, (0.2 + 0.05 * (cloud % 4)) * width];
      const shade = context.createRadialGradient(x, y, 0, x, y, size);
      shade.addColorStop(0, `rgba(235, 238, 240, ${0.5 * strength})`);
      shade.addColorStop(1, "rgba(235, 238, 240, 0)");
      context.fillStyle = shade;
      context.fillRect(0, 0, width, height);
    }
  },
  dark(context, { width, height }, strength) {
    context.fillStyle = `rgba(0, 0, 8, ${0.95 * strength})`;
    context.fillRect(0, 0, width, height);
  },
};

export function makeTry({ notify, onToken, listStreams, hasStream, listClasses }) {
  const canvas = find("try-image");
  let source = null; // the image before it is made worse
  let busy = false;
  let again = false; // something changed while an answer was awaited

  function corrupt() {
    if (!source) return false;
    const { width: wide, height: tall } = source;
    const scale = Math.min(1, LARGEST / Math.max(wide, tall));
    canvas.width = Math.max(1, Math.round(wide * scale));
    canvas.height = Math.max(1, Math.round(tall * scale));
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(source, 0, 0, canvas.width, canvas.height);
    const strength = Number(find("strength").value) / 10;
    if (strength) CORRUPTIONS[find("corruption").value](context, canvas, strength);
    find("drop-hint").hidden = true;
    return true;
  }

  async function send() {
    if (!corrupt()) return;
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    const stream = find("try-stream").value.trim() || OWN;
    const mode = find("try-adapt").checked ? "adapt" : "answer";
    try {
      const body = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
      const path = `${streamPath(stream)}/images?compare=true&mode=${mode}`;
      const found = await askJson(path, { method: "POST", headers: { "Content-Type": "image/png" }, body });
      show(stream, found.answers[0]);
      showPhase(stream);
    } catch (error) {
      report(error);
    }
    busy = false;
    if (again) {
      again = false;
      await send();
    }
  }

  function report(error) {
    if (error instanceof NeedsToken) onToken();
    else notify(error instanceof Refusal ? error.message : "The service cannot be reached.");
  }

  function showSample(image) {
    find("drop-hint").hidden = true;
    [canvas.width, canvas.height] = [image.width, image.height];
    canvas.getContext("2d").drawImage(image, 0, 0);
  }

  const samples = makeSamples({ stream: OWN, hasStream, listClasses, report, showImage: showSample, showAnswer: (answer) => show(OWN, answer, false), spoil: (name, strength) => (context, image) => CORRUPTIONS[name](context, image, strength / 10) });

  function show(stream, answer, logs = true) {
    if (answer.error) {
      find("try-verdict").textContent = answer.error;
      return;
    }
    const rows = (top) => top.map(([label, share]) => makeRow(label, share, formatShare(share)));
    find("try-adapted").replaceChildren(...rows(answer.top));
    find("try-frozen").replaceChildren(...rows(answer.frozen_top));
    const label = nameLabel(answer.label, answer.probability);
    const text = label === answer.frozen ? `Both say ${label}.` : `The adapted model says ${label}, the frozen model ${answer.frozen}.`;
    find("try-verdict").textContent = text;
    if (!logs) return;
    const strength = Number(find("strength").value);
    const what = strength ? `${find("corruption").value} ${strength}` : "as it is";
    find("try-log").prepend(make("li", {}, make("span", { class: "soft", text: what }), make("span", { text: `${stream}: ${text}` })));
    while (find("try-log").children.length > TOLD) find("try-log").lastChild.remove();
  }

  async function showPhase(stream) {
    try {
      const { status } = await askJson(streamPath(stream));
      find("try-phase").textContent = `${status.images.toLocaleString("en")} images so far. ${PHASES[status.adapting] ?? ""}`;
    } catch {
      find("try-phase").textContent = "This stream does not exist yet: nothing adapts before an image is sent to adapt on.";
    }
  }

  async function take(files) {
    for (const file of files) {
      if (!file.type.startsWith("image/")) continue;
      try {
        source = await createImageBitmap(file);
      } catch {
        notify(`${file.name || "This"} is not an image that the browser can read.`);
        continue;
      }
      await send();
    }
  }

  find("choose").addEventListener("click", () => find("files").click());
  find("files").addEventListener("change", () => take([...find("files").files]));
  find("strength").addEventListener("input", () => {
    find("strength-value").textContent = find("strength").value;
    corrupt();
  });
  for (const id of ["strength", "corruption", "try-stream"]) find(id).addEventListener("change", send);
  find("try-stream").addEventListener("input", () => (find("try-adapt").checked = find("try-stream").value.trim() === OWN));
  find("try-stream").addEventListener("focus", () => find("try-streams").replaceChildren(...[OWN, ...listStreams()].map((name) => make("option", { value: name }))));
  const drop = find("drop");
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragenter" || kind === "dragover");
      if (kind === "drop") take([...event.dataTransfer.files]);
    });
  }
  document.addEventListener("paste", (event) => {
    if (!find("try").hidden && event.clipboardData.files.length) take([...event.clipboardData.files]);
  });

  return {
    // Opens with an image of a camera, answered by that camera without adapting it.
    open(stream, image) {
      find("try-stream").value = stream;
      find("try-adapt").checked = false;
      source = image;
      send();
    },
    close: samples.stop,
  };
}
