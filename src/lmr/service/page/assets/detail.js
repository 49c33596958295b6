// One stream: its signals against the frozen model, what it predicts, and what an operator may do.

import { makeChart } from "./charts.js";
import { drawFrame, find, formatAgo, formatNumber, formatShare, make, makeRow, nameLabel, setDot } from "./dom.js";
import { makeEvent } from "./events.js";
import { askJson, NeedsToken, Refusal, streamPath } from "./feed.js";
import { explain, judge, sayEstimate } from "./words.js";

const ACTIONS = [
  { action: "reset", label: "Reset", title: "Forget everything: answer as the frozen model does, and begin again" },
  { action: "rollback", label: "Roll back", title: "Go back to the newest good snapshot" },
  { action: "pause", label: "Pause", title: "Keep the present state and adapt no more" },
  { action: "resume", label: "Resume", title: "Adapt again" },
];
const DONE = { reset: "was reset", rollback: "was rolled back", pause: "is paused", resume: "adapts again" };

const HEADS = { Estimated: "estimated", Labelled: "right", Compared: "compared", "Right, adapted": "right", "Right, frozen": "frozen", "Changed answers": "changed" };

export function makeDetail({ notify, onToken, onClose, onTry }) {
  const title = (text, term) => make("span", {}, `${text} `, explain(term, text));
  const charts = [
    makeChart(title("Right answers, where compared", "right"), [{ key: "compared_accuracy", label: "adapted" }, { key: "frozen_accuracy", label: "frozen" }], { least: 0, most: 1, format: formatShare }),
    makeChart(title("Changed answers", "changed"), [{ key: "changed", label: "share" }], { least: 0, most: 1, format: formatShare }),
    makeChart(title("Entropy of the answers", "entropy"), [{ key: "entropy", label: "adapted" }, { key: "frozen_entropy", label: "frozen" }], { least: 0 }),
    makeChart(title("Variety of classes, adapted ÷ frozen", "concentration"), [{ key: "concentration", label: "ratio" }], { least: 0 }),
    makeChart(title("Distance from the start", "drift"), [{ key: "drift", label: "drift" }], { least: 0 }),
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
    find("detail-health").hidden = true;
    find("detail-empty").hidden = false;
    find("detail-empty").textContent = message;
  }

  function show({ status, signals, history, shares, snapshots, answers, events }) {
    seen = status.change;
    find("detail-empty").hidden = true;
    find("detail-body").hidden = false;
    const badge = find("detail-health");
    badge.hidden = false;
    const said = judge(status);
    badge.textContent = said.words;
    setDot(badge, said.dot);
    find("verdict").replaceChildren(make("strong", { class: said.help, text: said.verdict }), ` ${said.trend}. `, make("strong", { text: "To do: " }), said.todo);
    showFacts({
      Requests: status.seq.toLocaleString("en"),
      Images: status.images.toLocaleString("en"),
      Adapts: status.adapts ? "yes" : "no",
      "Last request": formatAgo(Date.now() / 1000 - status.updated),
      State: status.resident ? "in memory" : "in the store",
      Waiting: status.waiting,
      "Right, adapted": formatShare(status.compared_accuracy ?? status.accuracy),
      "Right, frozen": formatShare(status.frozen_accuracy),
      "Changed answers": formatShare(status.changed),
      ...(status.taught ? { Estimated: sayEstimate(status) } : {}),
      Labelled: `${status.labelled.toLocaleString("en")} images`,
      Compared: signals.compared === undefined ? "–" : `${formatNumber(signals.compared)} images`,
    });
    charts.forEach((chart) => chart.update(history));
    const largest = Math.max(...shares.map(([, share]) => share), 1e-9);
    find("shares").replaceChildren(...shares.slice(0, 10).map(([label, share]) => makeRow(label, share / largest, formatShare(share))));
    find("answers").replaceChildren(...answers.slice(-10).reverse().map(({ label, probability, frozen }) => makeRow(`${nameLabel(label, probability)}${frozen && frozen !== label ? ` (frozen: ${frozen})` : ""}`, probability, formatShare(probability))));
    const listed = snapshots.map((step) => step.toLocaleString("en")).join(", ");
    find("snapshots").textContent = snapshots.length ? `Taken at step ${listed}.` : "None yet: one is taken after enough quiet steps.";
    find("history").replaceChildren(...events.slice(-20).reverse().map((event) => makeEvent(event)));
    find("history-box").hidden = events.length === 0;
    const can = { pause: status.adapts, resume: !status.adapts };
    buttons.forEach((button) => (button.disabled = can[button.dataset.action] === false));
  }

  function showFacts(facts) {
    find("facts").replaceChildren(...Object.entries(facts).map(([key, value]) => make("div", {}, make("dt", {}, key, ...(HEADS[key] ? [" ", explain(HEADS[key], key)] : [])), make("dd", { text: value }))));
  }

  async function showFrames(stream) {
    const { frames } = await askJson(`${streamPath(stream)}/frames`);
    const shown = await Promise.all(frames.slice().reverse().map((frame) => makeFrame(stream, frame)));
    find("frames-box").hidden = shown.length === 0;
    find("frames").replaceChildren(...shown);
  }

  async function makeFrame(stream, { label: known, probability, frozen, b64 }) {
    const label = nameLabel(known, probability);
    const canvas = make("canvas", { role: "img", "aria-label": label });
    const bitmap = await drawFrame(canvas, b64);
    const differs = frozen && frozen !== label;
    return make(
      "li",
      {},
      make("button", { type: "button", title: "Try this frame", "aria-label": `Try this frame: ${label}`, onclick: () => onTry(stream, bitmap) }, canvas),
      make("span", { text: label }),
      make("span", { class: differs ? "differs" : "soft", text: differs ? `frozen: ${frozen}` : frozen ? "frozen: same" : "not compared" }),
    );
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
      if (!stream) return;
      find("detail-title").textContent = stream;
      find("detail-body").hidden = true;
      refresh();
    },
  };
}
