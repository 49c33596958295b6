// The page of lmr label: one image at a time.

import { find } from "./dom.js";
import { makeLabeller } from "./labeller.js";

const WAIT = 2000; // milliseconds between two looks at the estimate
const SMALL = 200; // pixels below which an image is shown with sharp pixels

let state = null;
let busy = false;
const choose = makeLabeller({ onAct: (body) => state && act({ ...body, image: state.image }), isOpen: () => state !== null });

async function ask(body) {
  const options = body ? { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) } : {};
  const answer = await fetch("state", options);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.detail ?? answer.statusText);
  return found;
}

function notify(text) {
  find("notice").textContent = text;
  find("notice").hidden = !text;
}

async function act(body) {
  if (busy) return;
  busy = true;
  try {
    show(await ask(body));
    notify("");
  } catch (error) {
    notify(error instanceof TypeError ? "lmr label does not answer: it was ended. The labels are in its file." : error.message);
  } finally {
    busy = false;
  }
}

function show(found) {
  const fresh = state === null || found.image !== state.image;
  state = found;
  const left = Math.max(0, state.goal - state.labelled);
  find("progress").textContent = left ? `${state.labelled} of ${state.goal} labelled` : `${state.labelled} labelled: enough, but more make it better`;
  find("bar").max = state.goal;
  find("bar").value = Math.min(state.labelled, state.goal);
  find("estimate").textContent = state.estimate;
  find("back").disabled = state.labelled === 0;
  const ended = state.image === null;
  find("done").hidden = !ended && left > 0;
  find("done").textContent = ended ? `All ${state.total} images are labelled, in ${state.file}.` : `You can stop at any time: the labels are in ${state.file}.`;
  choose(state.names, { has: !ended, fresh });
  find("path").textContent = ended ? "" : state.path;
  if (!fresh || ended) return;
  find("image").src = `image/${state.image}`;
  if (state.next !== null) new Image().src = `image/${state.next}`;
}

find("image").addEventListener("load", () => {
  const { naturalWidth: width, naturalHeight: height } = find("image");
  find("image").classList.toggle("small", Math.max(width, height) < SMALL);
});
find("image").addEventListener("error", () => {
  if (state?.image === null) return;
  notify(`${state.path} cannot be shown; it is skipped.`);
  act({ action: "skip", image: state.image });
});

act(null);
setInterval(async () => {
  if (busy || !state) return;
  try {
    find("estimate").textContent = (await ask(null)).estimate;
  } catch {
    // the next action says so
  }
}, WAIT);
