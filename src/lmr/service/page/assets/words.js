// What the page says: the health of a camera in words, what to do about it, and an explanation of every term.

import { find, formatAgo, formatShare, isNumber, make, plural } from "./dom.js";

export const WANTED = 10; // labels that a camera is asked for
const MANY = 2; // standard errors, from which a gain is not chance

export const TERMS = {
  label: "The class that the adapted model finds most likely in this image, with its probability.",
  none: "The score that this image belongs to one of the classes is below the threshold of the service (--unknown): it has no label, and the camera learns nothing from it.",
  frozen: "The same model without adaptation, answering the same image; shown where the watch compared the two.",
  changed: "The share of the recently compared images whose label is not that of the frozen model.",
  right: "The share of labelled images that were answered rightly, by the adapted and by the frozen model on the same images; you label frames in the view Label, or send labels with POST /v1/streams/NAME/labels.",
  estimated: "The share of right answers that labels of images like the present ones show, each judged without it, with its 95 % interval. Label random frames, in the view Label.",
  todo: "What an operator would do now, from the health of the camera and from its labels.",
  ok: "The camera gives its usual picture, and no signal of the watch is unusual.",
  camera: "What the pixels of the last images show, compared with the first images of this camera; the model is not asked. While there is no picture, answers are marked as not trusted, and nothing is learnt.",
  changed_images: "The images are no longer like the first ones. Whether adapting helps is only known from labels.",
  fell: "The share of right answers among the last labelled images is less than half of the best that this camera had.",
  suspected: "A signal is unusual, and every image is now compared with the frozen model; most suspicions pass.",
  alarm: "The alarm was confirmed, and this watch only reports.",
  "rolled back": "The alarm was confirmed: the camera went back to an earlier snapshot and does not adapt for a while.",
  reset: "The alarm was confirmed: the camera went back to the frozen model and does not adapt for a while.",
  paused: "An operator stopped adaptation, or the camera failed repeatedly and was reset; it adapts again when you resume it.",
  unwatched: "The service runs without a watch, so nobody compares this camera with the frozen model.",
  damaged: "What the store keeps of this camera cannot be read.",
  entropy: "How unsure the answers are: 0 is certain; far below the frozen model is a sign of collapse.",
  concentration: "The number of classes that are predicted, adapted divided by frozen; far below 1 is a sign of collapse.",
  drift: "How far the adapted parameters are from those of the frozen model, relative to their length.",
  compared: "Images that were answered by the frozen model too, to watch the camera.",
  snapshots: "Copies of the state from healthy times, to which the camera can be rolled back.",
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

const LOOK = "Look at the camera";
// What is wrong with a camera: words, rank, colour, what to do.
const CAMERAS = {
  black: ["The picture is black", 1, "bad", `${LOOK}: power, light, a closed shutter?`],
  white: ["The picture is white", 1, "bad", `${LOOK}: exposure, or a light that shines into it?`],
  "one colour": ["The picture is one colour", 1, "bad", `${LOOK}: the cable, the sensor, or its feed?`],
  static: ["The picture is noise", 1, "bad", `${LOOK}: the cable, the sensor, or its feed?`],
  stuck: ["Stuck: the same frame again and again", 1, "bad", "Restart the camera or its feed."],
  covered: ["The lens is covered", 1, "bad", `${LOOK}: take away what covers the lens.`],
  "no frames": ["Sends no frames", 2, "bad", "Look whether the camera and its feed run; delete the stream if it has ended."],
  "upside down": ["Upside down", 3, "suspected", "Turn the camera; or reset the stream, to take it as it is now."],
  blurred: ["Blurred", 3, "suspected", "Clean or focus the lens; or reset the stream, to take it as it is now."],
  moved: ["Moved, or something stands before it", 3, "suspected", `${LOOK}: point it back; or reset the stream, to take the new view.`],
};
export const nameCameraColour = (state) => CAMERAS[state]?.[2] ?? "ok";
const PHASES = { quiet: "Healthy: nothing unusual noticed", looking: "Changed: judging the change", adapting: "Changed: adapting" };
const HEALTH = {
  suspected: ["Suspected", 6, "Nothing yet: most suspicions pass."],
  alarm: ["Alarm", 2, "Decide: reset or pause it."],
  "rolled back": ["Rolled back by the watch", 4, "Look at the camera: dirt, a broken sensor, a wrong source?"],
  reset: ["Reset by the watch", 3, "Look at the camera: dirt, a broken sensor, a wrong source?"],
  damaged: ["Damaged in the store", 1, "Restore the store from a copy, or delete it."],
  paused: ["Paused", 5, "Resume it when it should adapt again; see its events for the reason."],
  unwatched: ["Not watched", 8, "Start the service with --watch on to be warned."],
};
const ATTENTION = 6; // ranks below this need somebody

// The estimated accuracy of a camera with labels, such as "estimated 71 % right (58 to 82), 24 labels".
export function sayEstimate(status) {
  if (!status.estimated_labels) return status.outdated ? "its labels are of other images" : "";
  const [low, high] = status.estimated_interval.map((end) => (100 * end).toFixed(0));
  return `estimated ${formatShare(status.estimated_accuracy, 2)} right (${low} to ${high}), ${plural(status.estimated_labels, "label")}`;
}

// Whether a camera needs labels: { count, why }, or null.
function wantLabels(status, help) {
  if (status.outdated) return { count: WANTED, why: `its images changed ${formatAgo(Date.now() / 1000 - status.outdated)}` };
  if (status.estimated_labels) return status.estimated_labels < WANTED ? { count: WANTED - status.estimated_labels, why: "a few labels say little" } : null;
  return help === "unknown" && (status.changed ?? 0) >= 0.05 ? { count: WANTED, why: "nobody knows whether adapting helps" } : null;
}

// The camera without labels whose answers are the least sure, or undefined: its answers may be wrong since its first image.
export const findLeastSure = (statuses) =>
  statuses.filter((status) => !status.taught && !status.labelled && isNumber(status.sureness)).sort((one, other) => one.sureness - other.sureness)[0];

// Whether the share of right answers fell to less than half of the best.
const hasFallen = ({ accuracy, best_accuracy: best }) => isNumber(accuracy) && isNumber(best) && accuracy < best / 2;

// Everything the page says about one camera: { words, term, dot, todo, rank, help, gain, trend, wants, healthy }.
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
    trend = changed < 0.005 ? "No answer changed." : status.estimated_labels ? "" : "No labels: nobody knows whether it helps.";
  }
  let [words, rank, todo] = HEALTH[status.health] ?? [PHASES[status.adapting] ?? (status.health === "ok" ? "Healthy" : status.health), 10, "Nothing."];
  let [term, dot] = [status.health, status.health];
  const changed_images = rank === 10 && status.adapting && status.adapting !== "quiet";
  if (changed_images) [rank, term, dot] = [9, "changed_images", help === "helps" || help === "same" ? "ok" : "suspected"];
  if (rank >= ATTENTION && help === "hurts") dot = "suspected";
  if (rank >= ATTENTION && hasFallen(status)) [words, rank, term, dot, todo] = [`Right answers fell: ${formatShare(status.accuracy, 2)}, at best ${formatShare(status.best_accuracy, 2)}`, 4, "fell", "bad", `Look at its images, and label ${plural(WANTED, "frame")} of ${status.stream}.`];
  const camera = CAMERAS[status.camera];
  if (camera && status.health !== "damaged") [words, rank, dot, todo, term] = [...camera, "camera"];
  if (dot === "bad" && term === "camera" && status.camera !== "no frames") [verdict, trend] = ["Not trusted: nothing is learnt from these images.", ""];
  if (rank >= ATTENTION && help === "hurts" && status.health !== "paused") [rank, todo] = [5, "Pause or reset it: the frozen model is better here."];
  const healthy = dot === "ok" && !changed_images;
  const wants = rank >= 8 ? wantLabels(status, help) : null;
  if (wants) todo = `Label ${plural(wants.count, "frame")} of ${status.stream}: ${wants.why}.`;
  return { words, term, dot, todo, rank, help, gain, verdict, trend, wants, healthy, attention: rank < ATTENTION };
}

export const sayAge = (status) => formatAgo(Date.now() / 1000 - status.updated);
