// The wall: a card for each camera, the worst first; with many cameras, a page of them at a time.

import { makeSparkline } from "./charts.js";
import { drawFrame, find, formatShare, isNumber, make, nameLabel, plural, setDot } from "./dom.js";
import { askJson, streamPath } from "./feed.js";
import { explain, findLeastSure, judge, sayAge, sayEstimate, WANTED } from "./words.js";

const PAGE = 24; // cards at a time
const POINTS = 60; // of a trend
const REST = 60; // milliseconds between two requests for frames
const AGAIN = 1500; // milliseconds after which a frame may be asked for again

const FILTERS = {
  All: () => true,
  "Needs you": (_, said) => said.attention,
  "Adapting hurts": (_, said) => said.help === "hurts",
  "Adapting helps": (_, said) => said.help === "helps",
  Adapting: (status) => status.adapts && (status.adapting ?? "adapting") === "adapting",
  Healthy: (_, said) => said.healthy,
};

export function makeWall() {
  const statuses = new Map();
  const said = new Map(); // what is said about each camera, computed when its status changes
  const cards = new Map(); // of the cameras on this page
  let frames = null; // whether the service shows frames, once that is known
  let page = 0;
  let filter = "All";
  let search = "";
  let waiting = false;

  const buttons = Object.keys(FILTERS).map((name) => make("button", { type: "button", "data-filter": name, onclick: () => choose(name) }));
  find("filters").append(...buttons);
  const answers = ["What do the cameras see?", "Is each right?", "Does adapting help?", "What should I do?"].map((question, number) => {
    const [value, under] = [make("p", { class: "value" }), make("p", { class: "under" })];
    find("summary").append(make("article", { class: "tile" }, make("h2", {}, question, " ", explain(["see", "health", "help", "todo"][number], question)), value, under));
    return { value, under };
  });
  find("page-back").addEventListener("click", () => turn(-1));
  find("page-next").addEventListener("click", () => turn(1));
  find("search").addEventListener("input", () => {
    search = find("search").value.trim().toLowerCase();
    page = 0;
    redraw();
  });

  function choose(name) {
    [filter, page] = [name, 0];
    redraw();
  }
  function turn(by) {
    page += by;
    redraw();
    find("wall").scrollIntoView({ block: "start" });
  }

  const matches = (status) => !search || `${status.stream} ${nameLabel(status.label, status.probability)} ${status.health} ${said.get(status.stream).words}`.toLowerCase().includes(search);

  function order() {
    const found = [];
    for (const status of statuses.values()) if (FILTERS[filter](status, said.get(status.stream)) && matches(status)) found.push(status);
    return found.sort((one, other) => said.get(one.stream).rank - said.get(other.stream).rank || (one.stream < other.stream ? -1 : 1));
  }

  function draw() {
    waiting = false;
    const found = order();
    const last = Math.max(0, Math.ceil(found.length / PAGE) - 1);
    page = Math.min(Math.max(0, page), last);
    const shown = found.slice(page * PAGE, (page + 1) * PAGE);
    const names = new Set(shown.map((status) => status.stream));
    for (const name of [...cards.keys()]) if (!names.has(name)) cards.delete(name);
    const items = shown.map((status) => {
      if (!cards.has(status.stream)) cards.set(status.stream, makeCard(status.stream));
      const card = cards.get(status.stream);
      card.show(status, said.get(status.stream), frames);
      return card.element;
    });
    const list = find("cards");
    if (items.length !== list.children.length || items.some((item, place) => item !== list.children[place])) {
      const focused = document.activeElement;
      list.replaceChildren(...items);
      if (list.contains(focused)) focused.focus({ preventScroll: true });
    }
    find("wall-empty").hidden = found.length > 0;
    find("wall-empty").textContent = statuses.size ? "No camera is like that." : "No camera yet. A stream begins with its first request; open Try it to send an image from here.";
    find("pages").hidden = last === 0;
    find("page-number").textContent = `Page ${page + 1} of ${last + 1}`;
    find("page-back").disabled = page === 0;
    find("page-next").disabled = page === last;
    for (const button of buttons) {
      const name = button.dataset.filter;
      let count = 0;
      for (const status of statuses.values()) count += FILTERS[name](status, said.get(status.stream));
      button.textContent = `${name} ${count.toLocaleString("en")}`;
      button.setAttribute("aria-pressed", String(name === filter));
    }
    summarise();
  }

  // The four questions, over all cameras.
  function summarise() {
    const all = [...statuses.values()];
    const count = (test) => all.filter((status) => test(status, said.get(status.stream))).length;
    const labels = new Map();
    for (const { label, probability } of all) {
      const name = nameLabel(label, probability);
      labels.set(name, (labels.get(name) ?? 0) + 1);
    }
    const often = [...labels].sort((one, other) => other[1] - one[1]).slice(0, 3);
    tell(0, often.map(([label, times]) => (times > 1 ? `${label} (${times})` : label)).join(", ") || "Nothing yet", `${plural(all.length, "camera")}, ${count((status) => Date.now() / 1000 - status.updated < 60).toLocaleString("en")} sent an image in the last minute`);
    const [healthy, urgent, suspected] = [count(FILTERS.Healthy), count(FILTERS["Needs you"]), count((status) => status.health === "suspected")];
    const right = (status) => status.estimated_accuracy ?? status.accuracy;
    const labelled = all.filter((status) => isNumber(right(status)));
    const mean = labelled.reduce((sum, status) => sum + right(status), 0) / Math.max(1, labelled.length);
    const lowest = labelled.reduce((least, status) => (least && right(least) <= right(status) ? least : status), null);
    const health = `${healthy.toLocaleString("en")} of ${all.length.toLocaleString("en")} healthy${suspected ? `, ${suspected} suspected` : ""}`;
    if (lowest) tell(1, `${formatShare(mean, 2)} right`, `lowest: ${lowest.stream}, ${formatShare(right(lowest), 2)}; ${health}`);
    else tell(1, health, "no labels were sent, so nobody knows for certain");
    const known = all.filter((status) => said.get(status.stream).gain !== null);
    const gain = known.reduce((sum, status) => sum + said.get(status.stream).gain, 0) / Math.max(1, known.length);
    const [helps, hurts] = [count(FILTERS["Adapting helps"]), count(FILTERS["Adapting hurts"])];
    const compared = all.filter((status) => isNumber(status.changed));
    const changed = compared.reduce((sum, status) => sum + status.changed, 0) / Math.max(1, compared.length);
    const changes = compared.length ? `${formatShare(changed, 2)} of the answers are changed` : "nothing was compared yet";
    const verdict = hurts > helps ? "No" : helps ? "Yes" : Math.abs(gain) < 0.05 ? "No difference yet" : "No clear difference";
    if (known.length) tell(2, Math.abs(gain) < 0.05 ? verdict : `${verdict}: ${gain < 0 ? "−" : "+"}${Math.abs(gain).toFixed(1)} points`, `helps ${helps}, hurts ${hurts}, no clear difference for ${known.length - helps - hurts}; ${changes}`);
    else tell(2, "Not known", `${changes}; label some frames to know`);
    const rank = (status) => said.get(status.stream).rank;
    const worst = all.reduce((found, status) => (found && rank(found) <= rank(status) ? found : status), null);
    const asks = all.filter((status) => said.get(status.stream).wants);
    const unsure = findLeastSure(all.filter((status) => said.get(status.stream).rank >= 8));
    const wanting = asks.reduce((found, status) => (found && (found.outdated || !status.outdated) ? found : status), null);
    answers[3].value.parentElement.classList.toggle("attention", urgent > 0);
    if (urgent) tell(3, make("a", { href: `#${worst.stream}`, text: `Look at ${worst.stream}` }), `${urgent > 1 ? `${urgent} cameras need you. ` : ""}${said.get(worst.stream).words}. ${said.get(worst.stream).todo}`);
    else if (wanting) tell(3, make("a", { href: `#/label/${wanting.stream}`, text: `Label ${plural(said.get(wanting.stream).wants.count, "frame")} of ${wanting.stream}` }), `${said.get(wanting.stream).wants.why}; no camera is in trouble`);
    else if (unsure) tell(3, make("a", { href: `#/label/${unsure.stream}`, text: `Label ${plural(WANTED, "frame")} of ${unsure.stream}` }), `its answers are the least sure, ${formatShare(unsure.sureness, 2)} in the mean, and have no labels; no camera is in trouble`);
    else tell(3, all.length ? "Nothing" : "Send an image", all.length ? "no camera needs you" : "a stream begins with its first image");
  }

  function tell(number, value, under) {
    const box = answers[number];
    if (typeof value !== "string" || box.value.textContent !== value) box.value.replaceChildren(value);
    box.under.textContent = under;
  }

  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(draw);
  }

  // One request at a time: the history of new cards, and the last frames of cards that can be seen.
  async function fill() {
    for (;;) {
      const due = [...cards.values()].filter((card) => !document.hidden && card.isDue(frames));
      for (const card of due) {
        if (card.element.isConnected) await card.fill(frames);
        await new Promise((resolve) => setTimeout(resolve, REST));
      }
      await new Promise((resolve) => setTimeout(resolve, due.length ? REST : 300));
    }
  }
  fill();

  return {
    statuses,
    redraw,
    set showsFrames(value) {
      frames = value;
      find("frames-off").hidden = value;
      redraw();
    },
    put(changed) {
      for (const status of changed) {
        const before = statuses.get(status.stream);
        if (before && before.change > status.change) continue;
        if (status.health === "deleted") statuses.delete(status.stream);
        else {
          statuses.set(status.stream, status);
          said.set(status.stream, judge(status));
          cards.get(status.stream)?.note(status);
        }
      }
      redraw();
    },
    keep(names) {
      for (const name of [...statuses.keys()]) if (!names.has(name)) statuses.delete(name);
      redraw();
    },
  };
}

function makeCard(name) {
  const image = make("canvas", { class: "frame", width: 96, height: 96, role: "img" });
  const nothing = make("div", { class: "frame none", text: "no frame" });
  const label = make("p", { class: "label" });
  const frozen = make("p", { class: "frozen" });
  const words = make("span", { class: "badge" });
  const age = make("span", { class: "soft age" });
  const verdict = make("strong");
  const trend = make("span", { class: "soft" });
  const estimate = make("span");
  const estimated = make("p", { class: "estimated" }, estimate, " ", explain("estimated", "estimated"));
  const todo = make("span");
  const spark = makeSparkline(42, 2, { least: 0, most: 1 });
  const help = explain("ok", "health");
  const about = explain("right", "this trend");
  const element = make(
    "li",
    { class: "card", "data-stream": name },
    make("div", { class: "picture" }, image, nothing),
    make("div", { class: "says" }, make("h3", {}, make("a", { href: `#${name}`, text: name, title: name })), label, frozen),
    make("p", { class: "health" }, words, help, age),
    estimated,
    make("p", { class: "trend" }, verdict, " ", trend, about),
    spark.element,
    make("p", { class: "todo" }, make("span", { class: "soft", text: "To do: " }), todo),
  );
  let [change, framed, asked, read] = [0, -1, 0, false];
  let points = [];

  function showAnswer(answer, share, plain, same) {
    const certain = isNumber(share) && answer !== null; // the share of an image of no class is that of its best class
    label.replaceChildren(make("strong", { text: nameLabel(answer, share) }), certain ? ` ${formatShare(share, 2)} ` : " ", explain(answer === null && isNumber(share) ? "none" : "label"));
    const text = plain === null || plain === undefined ? (same ? "Frozen model: answers the same now" : "Frozen model: not compared") : plain === answer ? "Frozen model: the same" : "";
    frozen.classList.toggle("differs", !text);
    frozen.replaceChildren(...(text ? [text] : ["Frozen model: ", make("strong", { text: plain })]), " ", explain("frozen", "frozen model"));
  }

  const drawTrend = () => {
    const known = points.some((point) => isNumber(point.compared_accuracy));
    const keys = known ? ["compared_accuracy", "frozen_accuracy"] : ["changed", "none"];
    if (points.length > 1) spark.update(keys.map((key) => points.map((point) => point[key])));
  };

  return {
    element,
    show(status, said, frames) {
      change = status.change;
      setDot(element, said.dot);
      setDot(words, said.dot);
      words.textContent = said.words;
      help.dataset.term = said.term;
      about.dataset.term = said.gain === null ? "changed" : "right";
      age.textContent = sayAge(status);
      verdict.textContent = said.verdict;
      verdict.className = said.help;
      trend.textContent = said.trend;
      estimate.textContent = sayEstimate(status);
      estimated.hidden = !estimate.textContent;
      todo.textContent = said.todo;
      element.classList.toggle("attention", said.attention);
      image.hidden = framed < 0;
      nothing.hidden = framed >= 0;
      nothing.textContent = frames === false ? "frames are off" : "no frame yet";
      if (framed < 0) showAnswer(status.label, status.probability, status.frozen_label, status.adapting === "quiet");
    },
    note(status) {
      points.push(status);
      if (points.length > POINTS) points.shift();
      drawTrend();
    },
    isDue(frames) {
      if (!read) return true;
      return frames && change > framed && Date.now() - asked > AGAIN && isSeen(element);
    },
    async fill(frames) {
      asked = Date.now();
      try {
        if (!read) {
          const { history } = await askJson(streamPath(name));
          points = [...history.slice(-POINTS), ...points].slice(-POINTS);
          read = true;
          drawTrend();
        }
        if (!frames) return;
        const now = change;
        const found = (await askJson(`${streamPath(name)}/frames?limit=1`)).frames[0];
        if (!found) return;
        await drawFrame(image, found.b64);
        image.setAttribute("aria-label", `Last frame of ${name}: ${nameLabel(found.label, found.probability)}`);
        [framed, image.hidden, nothing.hidden] = [now, false, true];
        showAnswer(found.label, found.probability, found.frozen, false);
      } catch {
        read = true; // the stream is gone, or the service is; the next change asks again
      }
    },
  };
}

function isSeen(element) {
  const box = element.getBoundingClientRect();
  return box.bottom > 0 && box.top < innerHeight && box.width > 0;
}
