// What the page says: the health of a camera in words, what to do about it, and an explanation of every term.

import { find, formatAgo, formatShare, isNumber, make } from "./dom.js";

const MANY = 2; // standard errors, from which a gain is not chance

export const TERMS = {
  label: "The class that the adapted model finds most likely in this image, with its probability.",
  none: "The score that this image belongs to one of the classes is below the threshold of the service (--unknown): it has no label, and the camera learns nothing from it.",
  frozen: "The same model without adaptation, answering the same image; shown where the watch compared the two.",
  changed: "The share of the recently compared images whose label is not that of the frozen model.",
  right: "The share of labelled images that were answered rightly, by the adapted and by the frozen model on the same images; you send labels with POST /v1/streams/NAME/labels.",
  todo: "What an operator would do now, from the health of the camera and from its labels.",
  ok: "No signal of the watch is unusual.",
  watch: "A signal is unusual, and every image is now compared with the frozen model; most suspicions pass.",
  alarm: "The alarm was confirmed, and this watch only reports.",
  "rolled back": "The alarm was confirmed: the camera went back to an earlier snapshot and does not adapt for a while.",
  reset: "The alarm was confirmed: the camera went back to the frozen model and does not adapt for a while.",
  quarantined: "The camera failed repeatedly and is answered by the frozen model until you resume it.",
  paused: "An operator stopped adaptation; the state is kept.",
  unwatched: "The service runs without a watch, so nobody compares this camera with the frozen model.",
  damaged: "What the store keeps of this camera cannot be read.",
  entropy: "How unsure the answers are: 0 is certain; far below the frozen model is a sign of collapse.",
  concentration: "The number of classes that are predicted, adapted divided by frozen; far below 1 is a sign of collapse.",
  drift: "How far the adapted parameters are from those of the frozen model, relative to their length.",
  canaries: "Agreement with the frozen model on kept images of which it was sure.",
  compared: "Images that were answered by the frozen model too, to watch the camera.",
  snapshots: "Copies of the state from healthy times, to which the camera can be rolled back.",
  throughput: "Images that the service answers in a second, over all cameras.",
  latency: "Milliseconds from the arrival of a request to its answer: p50 is the median, p99 is exceeded by one in a hundred.",
  queue: "Images that wait to be computed; requests beyond the limit are told to come back later.",
  batch: "Images of different cameras that are computed together.",
  store: "The database of the states, which survive a restart.",
  see: "The last label of every camera, most frequent first.",
  health: "The watch compares each camera with the frozen model, without labels, and acts when adaptation goes wrong.",
  help: "Accuracy of the adapted against the frozen model on labelled images; a gain counts when it is beyond two standard errors.",
};

// A button that opens one sentence about a term.
export function explain(term, name = term) {
  return make("button", { type: "button", class: "explain", "data-term": term, "aria-label": `What is "${name}"?`, "aria-expanded": "false", text: "?" });
}

export function followHelp() {
  const box = find("help");
  let asked = null;
  function close() {
    asked?.setAttribute("aria-expanded", "false");
    asked?.removeAttribute("aria-describedby");
    asked = null;
    box.hidden = true;
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".explain");
    const again = button && button === asked;
    close();
    if (!button || again) return;
    asked = button;
    box.textContent = TERMS[button.dataset.term] ?? "";
    box.hidden = false;
    button.setAttribute("aria-expanded", "true");
    button.setAttribute("aria-describedby", "help");
    const place = button.getBoundingClientRect();
    const left = Math.min(place.left, document.documentElement.clientWidth - box.offsetWidth - 8);
    box.style.left = `${Math.max(8, left) + scrollX}px`;
    box.style.top = `${place.bottom + 6 + scrollY}px`;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
  });
}

const PHASES = { quiet: "Healthy, sees no need to adapt", looking: "Healthy, judges a change", adapting: "Healthy, adapts to a change" };
const HEALTH = {
  watch: ["Suspected", 6, "Nothing yet: most suspicions pass."],
  alarm: ["Alarm", 2, "Decide: reset or pause it."],
  "rolled back": ["Rolled back by the watch", 4, "Look at the camera: dirt, a broken sensor, a wrong source?"],
  reset: ["Reset by the watch", 3, "Look at the camera: dirt, a broken sensor, a wrong source?"],
  quarantined: ["Quarantined", 0, "Repair the camera, then resume it."],
  damaged: ["Damaged in the store", 1, "Restore the store from a copy, or delete it."],
  paused: ["Paused by an operator", 7, "Resume it when it should adapt again."],
  unwatched: ["Not watched", 8, "Start the service with --watch on to be warned."],
};
const ATTENTION = 6; // ranks below this need somebody

// Everything the page says about one camera: { words, todo, rank, help, gain, trend }.
export function judge(status) {
  const [adapted, frozen, count] = [status.compared_accuracy, status.frozen_accuracy, status.compared_labelled];
  const changed = status.changed;
  let help = "unknown";
  let trend = "Not compared with the frozen model yet.";
  let verdict = "";
  const known = isNumber(adapted) && isNumber(frozen);
  const gain = known ? 100 * (adapted - frozen) : null;
  if (known) {
    // Each image that only one of the two answers rightly is a step of ±1: at most the changed ones.
    const error = 100 * Math.sqrt(Math.max(changed ?? 1, Math.abs(gain) / 100) / Math.max(1, count));
    help = Math.abs(gain) <= MANY * error || Math.abs(gain) < 0.05 ? "same" : gain > 0 ? "helps" : "hurts";
    const points = `${gain > 0 ? "+" : "−"}${Math.abs(gain).toFixed(1)} points`;
    verdict = { helps: `Adapting helps: ${points}.`, hurts: `Adapting hurts: ${points}.`, same: Math.abs(gain) < 0.05 ? "As good as frozen." : `No clear difference: ${points}.` }[help];
    trend = `${formatShare(adapted, 2)} right, frozen ${formatShare(frozen, 2)}`;
  } else if (isNumber(changed)) {
    verdict = changed < 0.005 ? "Answers as the frozen model." : `Changes ${formatShare(changed, 2)} of the answers.`;
    trend = changed < 0.005 ? "No answer changed." : "No labels: nobody knows whether it helps.";
  }
  let [words, rank, todo] = HEALTH[status.health] ?? [PHASES[status.adapting] ?? (status.health === "ok" ? "Healthy" : status.health), 10, "Nothing."];
  if (rank === 10 && status.adapting && status.adapting !== "quiet") rank = 9;
  if (rank >= ATTENTION && help === "hurts" && status.health !== "paused") [rank, todo] = [5, "Pause or reset it: the frozen model is better here."];
  if (rank >= 8 && help === "unknown" && (changed ?? 0) >= 0.05) todo = "Send some true labels to know whether it helps.";
  return { words, todo, rank, help, gain, verdict, trend, attention: rank < ATTENTION };
}

export const sayAge = (status) => formatAgo(Date.now() / 1000 - status.updated);
