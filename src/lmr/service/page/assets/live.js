// The live page: frames of events go to the tiles, the grid, the log and the stream that is open.

import { makeDetail } from "./detail.js";
import { find, HEALTHS, make, setDot } from "./dom.js";
import { makeEvent } from "./events.js";
import { askJson, follow, hasToken, keepToken, NeedsToken } from "./feed.js";
import { makeGrid } from "./grid.js";
import { makeTiles } from "./tiles.js";

const THEME = "lmr-theme";
const EVENTS = 200; // that the log keeps
const PAGE = 1000; // streams that are read at once
const SAID = 5000; // milliseconds that a message stays
const STATES = { ready: "ok", degraded: "quarantined", draining: "watch", loading: "watch", closed: "paused" };

let model = null; // what /v1/model says
let reading = null; // the list of streams that is being read
let stale = false; // whether it has to be read again: that failed, or something was missed meanwhile
let run = null; // the run of the service that the page shows
let only = null; // the health that the grid shows
let hush = 0;

const showTiles = makeTiles();
const grid = makeGrid((name) => choose(name));
const detail = makeDetail({ notify, onToken: askToken, onClose: () => choose(null) });
const feed = follow({ onFrame, onLost, onToken: askToken });

function onFrame(frame) {
  find("notice").hidden = true;
  const { overview } = frame;
  showState(overview.state, overview.reason);
  if (run !== frame.run) {
    run = frame.run;
    model = null;
  }
  if (overview.state === "loading") return;
  if (!model) readModel();
  showTiles(overview, model?.settings, frame.time);
  showLegend(overview.by_health);
  find("stream-count").textContent = `${overview.streams.toLocaleString("en")}, ${overview.resident.toLocaleString("en")} in memory`;
  if (frame.lost || stale) readStreams();
  grid.put(frame.streams);
  for (const status of frame.streams) reading?.add(status.stream); // one that began after its page was read
  showEvents(frame.events);
  const open = grid.statuses.get(detail.name);
  if (open && !document.hidden) detail.refresh(open.change);
}

function onLost(message) {
  showState("not connected");
  find("notice").textContent = `${message} Trying again.`;
  find("notice").hidden = false;
}

function showState(state, reason = "") {
  const badge = find("state");
  badge.textContent = state;
  badge.title = reason;
  setDot(badge, STATES[state] ?? "quarantined");
  if (state === "degraded" || state === "draining") {
    find("notice").textContent = reason || `The service is ${state}.`;
    find("notice").hidden = false;
  }
}

async function readModel() {
  try {
    model = await askJson("/v1/model");
    find("model").textContent = `${model.model}, ${model.classes.length} classes, ${model.spec}`;
    find("model").title = model.spec;
    detail.showsFrames = model.settings.show_frames;
  } catch (error) {
    if (error instanceof NeedsToken) askToken();
  }
}

// Reads all streams anew, page by page, and forgets those that are gone.
async function readStreams() {
  stale = reading !== null;
  if (stale) return;
  reading = new Set();
  try {
    for (let after = ""; after !== null; ) {
      const page = await askJson(`/v1/streams?limit=${PAGE}&after=${encodeURIComponent(after)}`);
      for (const status of page.streams) reading.add(status.stream);
      grid.put(page.streams);
      after = page.next;
    }
    grid.keep(reading);
  } catch (error) {
    stale = true;
    if (error instanceof NeedsToken) askToken();
  }
  reading = null;
}

function showLegend(counts) {
  const known = HEALTHS.filter((health) => counts[health] || health === only);
  const buttons = find("legend").children;
  if ([...buttons].map((button) => button.dataset.health).join() !== known.join()) {
    find("legend").replaceChildren(
      ...known.map((health) => {
        const button = make("button", { type: "button", "data-health": health, onclick: () => showOnly(health) });
        setDot(button, health);
        return button;
      }),
    );
  }
  for (const button of find("legend").children) {
    const health = button.dataset.health;
    button.textContent = `${health} ${(counts[health] ?? 0).toLocaleString("en")}`;
    button.setAttribute("aria-pressed", String(health === only));
  }
}

function showOnly(health) {
  only = only === health ? null : health;
  for (const button of find("legend").children) button.setAttribute("aria-pressed", String(button.dataset.health === only));
  grid.filter(find("search").value, only);
}

function showEvents(events) {
  const list = find("events");
  for (const event of events) {
    if (!list.querySelector(`[data-number="${Number(event.number)}"]`)) list.prepend(makeEvent(event, choose));
  }
  while (list.children.length > EVENTS) list.lastChild.remove();
  find("log-empty").hidden = list.children.length > 0;
  find("log-count").textContent = list.children.length === EVENTS ? `the last ${EVENTS}` : "";
}

function choose(name) {
  grid.choose(name);
  detail.open(name);
  history.replaceState(null, "", name ? `#${name}` : location.pathname);
  if (name && matchMedia("(max-width: 62rem)").matches) find("detail").scrollIntoView({ behavior: "smooth" });
}

function askToken() {
  const dialog = find("token-dialog");
  find("token-wrong").hidden = !hasToken();
  if (!dialog.open) dialog.showModal();
}

function notify(message) {
  find("toast").textContent = message;
  find("toast").hidden = false;
  clearTimeout(hush);
  hush = setTimeout(() => (find("toast").hidden = true), SAID);
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const chosenTheme = () => localStorage.getItem(THEME);

function applyTheme() {
  if (chosenTheme()) document.documentElement.dataset.theme = chosenTheme();
  grid.recolour();
}

applyTheme();
dark.addEventListener("change", applyTheme);
find("theme").addEventListener("click", () => {
  const now = chosenTheme() ?? (dark.matches ? "dark" : "light");
  localStorage.setItem(THEME, now === "dark" ? "light" : "dark");
  applyTheme();
});
find("search").addEventListener("input", () => grid.filter(find("search").value, only));
find("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && grid.first) choose(grid.first);
});
find("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(find("token").value);
  find("token").value = "";
  find("token-dialog").close();
  feed.restart();
});
const named = /^#([\w.-]+)$/.exec(location.hash); // the name of a stream, in a link to it
if (named) choose(named[1]);
