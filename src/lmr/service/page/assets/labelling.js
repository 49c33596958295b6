// Label: frames of the cameras that need labels most, one at a time. Each label teaches its camera at once.

import { drawFrame, find, make } from "./dom.js";
import { askJson, NeedsToken, Refusal, streamPath } from "./feed.js";
import { makeLabeller } from "./labeller.js";
import { sayEstimate } from "./words.js";

const GOAL = 20; // labels of a camera
const ASKED = 3; // frames of a camera that are asked for at a time
const TRIED = 4; // cameras that are asked for frames at a time
const WAIT = 2000; // milliseconds until cameras without a frame are asked again
const LISTED = 500; // cameras to choose from

export function makeLabelling({ notify, onToken, statuses, listClasses, isOpen }) {
  const choose = makeLabeller({ onAct: act, isOpen });
  const queue = []; // { stream, seq, image, images, b64 }
  const past = []; // that were labelled or skipped here, the last one last
  const known = new Set(); // of all frames that came
  const strange = new Set(); // of frames of none of the classes: they are not shown again
  let current = null;
  let camera = ""; // the only one that is asked, if any
  let frames = null; // whether the service keeps frames, once that is known
  let busy = false; // while a label is sent
  let loading = false;
  let opened = 0; // how often the view was opened
  let timer = 0;

  find("label-stream").addEventListener("change", () => open(find("label-stream").value));

  // Cameras with the fewest labels of their present images, those whose images changed before those without any.
  function order() {
    const found = [...statuses.values()].filter((status) => (camera ? status.stream === camera : status.estimated_labels < GOAL));
    const rank = (status) => status.estimated_labels + (status.outdated ? 0 : 0.5);
    return found.sort((one, other) => rank(one) - rank(other) || other.updated - one.updated);
  }

  const nameFrame = ({ stream, seq, image }) => `${stream} ${seq} ${image}`;

  async function refill() {
    clearTimeout(timer);
    if (loading || !isOpen() || !frames || queue.length) return;
    loading = true;
    const now = opened;
    try {
      for (const { stream } of order().slice(0, TRIED)) {
        const { images } = await askJson(`${streamPath(stream)}/label-queue?n=${ASKED}`);
        if (now !== opened) break;
        for (const one of images) {
          const name = nameFrame({ ...one, stream });
          if (one.b64 && !known.has(name) && !strange.has(name)) queue.push({ ...one, stream });
          known.add(name);
        }
      }
    } catch (error) {
      report(error);
    }
    loading = false;
    if (now !== opened) await refill();
    else if (!current) await next();
  }

  function report(error) {
    if (error instanceof NeedsToken) onToken();
    else notify(error instanceof Refusal ? error.message : "The service cannot be reached.");
  }

  async function next() {
    current = queue.shift() ?? null;
    await show(true);
    if (!queue.length) timer = setTimeout(refill, current ? 0 : WAIT);
  }

  async function act({ action, name }) {
    if (busy) return;
    if (action === "back") {
      if (!past.length) return;
      if (current) queue.unshift(current);
      current = past.pop();
      await show(true);
      return;
    }
    const done = current;
    if (action === "label" && name !== null) {
      busy = true;
      try {
        const labels = Array(done.images).fill(null);
        labels[done.image] = name;
        const headers = { "Content-Type": "application/json" };
        const status = await askJson(`${streamPath(done.stream)}/labels`, { method: "POST", headers, body: JSON.stringify({ seq: done.seq, labels }) });
        statuses.set(done.stream, status);
        done.label = name;
      } catch (error) {
        report(error);
      }
      busy = false;
    }
    if (name === null) strange.add(nameFrame(done));
    if (!name && done.label) notify(`It keeps its label, ${done.label}: a label can be replaced, not removed.`);
    past.push(done);
    tell(done.stream);
    await next();
  }

  function tell(stream) {
    const status = statuses.get(stream);
    find("progress").textContent = status ? `${stream}: ${status.estimated_labels} of ${GOAL} labels` : "";
    find("bar").value = Math.min(status?.estimated_labels ?? 0, GOAL);
    find("estimate").textContent = status?.estimated_labels ? `${stream}: ${sayEstimate(status)}` : "";
  }

  async function show(fresh) {
    if (current) {
      await drawFrame(find("image"), current.b64);
      find("path").textContent = `${current.stream}, image ${current.image + 1} of request ${current.seq}`;
      if (!find("progress").textContent) tell(current.stream);
    } else find("path").textContent = "";
    find("back").disabled = past.length === 0;
    find("done").hidden = current !== null;
    const enough = camera ? "" : ` Cameras with ${GOAL} labels of their present images are not asked; choose one to label more.`;
    find("done").textContent = frames ? `No frame waits for a label now.${enough}` : "";
    find("label-off").hidden = frames !== false;
    choose(listClasses(), { has: current !== null, fresh });
  }

  function open(name) {
    camera = name ?? "";
    opened += 1;
    const names = [...statuses.keys()].sort().slice(0, LISTED);
    if (camera && !names.includes(camera)) names.unshift(camera);
    find("label-stream").replaceChildren(make("option", { value: "", text: "all, those that need labels first" }), ...names.map((one) => make("option", { value: one, text: one })));
    find("label-stream").value = camera;
    queue.length = 0;
    current = null;
    known.clear();
    find("progress").textContent = "";
    show(true);
    refill();
  }

  return {
    open,
    // Cameras came that were not there when the view was opened.
    look() {
      if (isOpen() && !current && !loading) {
        if (find("label-stream").options.length <= 1) open(camera);
        else refill();
      }
    },
    set showsFrames(value) {
      frames = value;
      if (isOpen()) show(false).then(refill);
    },
  };
}
