// One stream: its signals against the frozen model, what it predicts, and what an operator may do.

import { makeChart } from "./charts.js";
import { find, formatAgo, formatNumber, formatShare, make, setDot } from "./dom.js";
import { makeEvent } from "./events.js";
import { askJson, NeedsToken, Refusal, streamPath } from "./feed.js";

const ACTIONS = [
  { action: "reset", label: "Reset", title: "Forget everything: answer as the frozen model does, and begin again" },
  { action: "rollback", label: "Roll back", title: "Go back to the newest good snapshot" },
  { action: "pause", label: "Pause", title: "Keep the present state and adapt no more" },
  { action: "resume", label: "Resume", title: "Adapt again" },
  { action: "undo", label: "Undo", title: "Undo the last rollback or reset, by the watch or by an operator" },
];
const DONE = { reset: "was reset", rollback: "was rolled back", pause: "is paused", resume: "adapts again", undo: "is as it was before" };

export function makeDetail({ notify, onToken, onClose }) {
  const charts = [
    makeChart("Entropy of the answers", [{ key: "entropy", label: "adapted" }, { key: "frozen_entropy", label: "frozen" }], { least: 0 }),
    makeChart("Accuracy on labelled images, where compared", [{ key: "compared_accuracy", label: "adapted" }, { key: "frozen_accuracy", label: "frozen" }], { least: 0, most: 1, format: formatShare }),
    makeChart("Variety of classes, adapted ÷ frozen", [{ key: "concentration", label: "ratio" }], { least: 0 }),
    makeChart("Same label as the frozen model", [{ key: "agreement", label: "share" }], { least: 0, most: 1, format: formatShare }),
    makeChart("Distance from the start", [{ key: "drift", label: "drift" }], { least: 0 }),
  ];
  find("charts").append(...charts.map((chart) => chart.element));
  const buttons = ACTIONS.map(({ action, label, title }) => make("button", { type: "button", text: label, title, "data-action": action, onclick: () => act(action) }));
  find("actions").append(...buttons);
  find("detail-close").addEventListener("click", onClose);
  let name = null;
  let seen = -1; // the change that is shown
  let busy = false;
  let showsFrames = false;

  async function act(action) {
    const stream = name;
    buttons.forEach((button) => (button.disabled = true));
    try {
      await askJson(`${streamPath(stream)}:${action}`, { method: "POST" });
      notify(`${stream} ${DONE[action]}.`);
    } catch (error) {
      report(error);
    }
    buttons.forEach((button) => (button.disabled = false));
    seen = -1;
    await refresh();
  }

  function report(error) {
    if (error instanceof Refusal) notify(error.message);
    else if (error instanceof NeedsToken) onToken();
    else notify("The service cannot be reached.");
  }

  async function refresh(change = Infinity) {
    if (!name || busy || change <= seen) return;
    busy = true;
    const chosen = name;
    try {
      const found = await askJson(streamPath(chosen));
      if (chosen === name) show(found);
      if (showsFrames && chosen === name) await showFrames(chosen);
    } catch (error) {
      if (chosen === name && error instanceof Refusal) showMissing(error.message);
    }
    busy = false;
    if (chosen !== name) refresh();
  }

  function showMissing(message) {
    find("detail-body").hidden = true;
    find("detail-empty").hidden = false;
    find("detail-empty").textContent = message;
  }

  function show({ status, signals, history, shares, snapshots, answers, events }) {
    seen = status.change;
    find("detail-empty").hidden = true;
    find("detail-body").hidden = false;
    const badge = find("detail-health");
    badge.hidden = false;
    badge.textContent = status.health;
    setDot(badge, status.health);
    showFacts({
      Requests: status.seq.toLocaleString("en"),
      Images: status.images.toLocaleString("en"),
      Adapts: status.adapts ? "yes" : "no",
      "Last request": formatAgo(Date.now() / 1000 - status.updated),
      State: status.resident ? "in memory" : "in the store",
      Waiting: status.waiting,
      Accuracy: formatShare(status.accuracy),
      "Where compared": `${formatShare(status.compared_accuracy)}, frozen ${formatShare(status.frozen_accuracy)}`,
      Labelled: `${status.labelled.toLocaleString("en")} images`,
      Compared: signals.compared === undefined ? "–" : `${formatNumber(signals.compared)} images`,
      Canaries: formatShare(signals.canaries),
    });
    charts.forEach((chart) => chart.update(history));
    const largest = Math.max(...shares.map(([, share]) => share), 1e-9);
    find("shares").replaceChildren(...shares.slice(0, 10).map(([label, share]) => makeRow(label, share / largest, formatShare(share))));
    find("answers").replaceChildren(...answers.slice(-10).reverse().map(({ label, probability }) => makeRow(label, probability, formatShare(probability))));
    const listed = snapshots.map((step) => step.toLocaleString("en")).join(", ");
    find("snapshots").textContent = snapshots.length ? `Taken at step ${listed}.` : "None yet: one is taken after enough quiet steps.";
    find("history").replaceChildren(...events.slice(-20).reverse().map((event) => makeEvent(event)));
    find("history-box").hidden = events.length === 0;
    const can = { pause: status.adapts, resume: !status.adapts };
    buttons.forEach((button) => (button.disabled = can[button.dataset.action] === false));
  }

  function showFacts(facts) {
    find("facts").replaceChildren(...Object.entries(facts).map(([key, value]) => make("div", {}, make("dt", { text: key }), make("dd", { text: value }))));
  }

  function makeRow(label, part, text) {
    const fill = make("i");
    fill.style.width = `${(100 * part).toFixed(1)}%`;
    return make("div", { class: "row" }, make("span", { text: label, title: label }), make("span", { class: "bar" }, fill), make("span", { text: text }));
  }

  async function showFrames(stream) {
    const { frames } = await askJson(`${streamPath(stream)}/frames`);
    const shown = await Promise.all(frames.slice(-12).reverse().map(drawFrame));
    find("frames-box").hidden = shown.length === 0;
    find("frames").replaceChildren(...shown);
  }

  async function drawFrame({ label, b64 }) {
    const bytes = Uint8Array.from(atob(b64), (letter) => letter.charCodeAt(0));
    const bitmap = await createImageBitmap(new Blob([bytes]));
    const canvas = make("canvas", { width: bitmap.width, height: bitmap.height });
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    return make("figure", {}, canvas, make("figcaption", { text: label, title: label }));
  }

  return {
    refresh,
    get name() {
      return name;
    },
    set showsFrames(value) {
      showsFrames = value;
    },
    open(stream) {
      name = stream;
      seen = -1;
      find("detail-title").textContent = stream ?? "Stream";
      find("detail-close").hidden = !stream;
      if (stream) refresh();
      else {
        find("detail-health").hidden = true;
        showMissing("Choose a stream to see how it differs from the frozen model.");
      }
    },
  };
}
