// The live page: frames of events go to the wall, the log and the camera that is open.

import { recolour } from "./charts.js";
import { makeDetail } from "./detail.js";
import { find, setDot } from "./dom.js";
import { makeEvent } from "./events.js";
import { askJson, follow, hasToken, keepToken, NeedsToken } from "./feed.js";
import { makeLabelling } from "./labelling.js";
import { makeTry } from "./tryit.js";
import { makeWall } from "./wall.js";
import { followHelp } from "./words.js";

const EVENTS = 200; // that the log keeps
const PAGE = 1000; // streams that are read at once
const REFRESH = 10; // seconds after which streams that other replicas serve are read again
const SAID = 5000; // milliseconds that a message stays
const LISTED = 500; // streams that Try it offers
const STATES = { ready: "ok", degraded: "damaged", closed: "paused" };
const TABS = ["wall", "label", "try", "operation"];

let model = null; // what /v1/model says
let reading = null; // the list of streams that is being read
let listed = 0; // the time of the service at which it was last read
let stale = false; // whether it has to be read again: that failed, or something was missed meanwhile
let hush = 0;

const wall = makeWall();
const tryIt = makeTry({ notify, onToken: askToken, listStreams: () => [...wall.statuses.keys()].slice(0, LISTED), hasStream: (name) => wall.statuses.has(name), listClasses: () => model?.classes ?? [] });
const detail = makeDetail({ notify, onToken: askToken, onClose: () => go(""), onTry: tryFrame });
const labelling = makeLabelling({ notify, onToken: askToken, statuses: wall.statuses, listClasses: () => model?.classes ?? [], isOpen: () => !find("label").hidden });
const feed = follow({ onFrame, onLost, onToken: askToken });
followHelp();

function onFrame(frame) {
  find("notice").hidden = true;
  const { overview } = frame;
  showState(overview.state, overview.reason);
  if (frame.lost) model = null; // perhaps of another run of the service
  if (!model) readModel();
  find("stream-count").textContent = `${overview.streams.toLocaleString("en")}, ${overview.resident.toLocaleString("en")} in memory`;
  if (frame.lost || stale || (overview.shared && frame.time - listed > REFRESH)) {
    listed = frame.time;
    readStreams();
  }
  wall.put(frame.streams);
  labelling.look();
  for (const status of frame.streams) reading?.add(status.stream); // one that began after its page was read
  showEvents(frame.events);
  const open = wall.statuses.get(detail.name);
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
  setDot(badge, STATES[state] ?? "damaged");
  if (state === "degraded") {
    find("notice").textContent = reason || `The service is ${state}.`;
    find("notice").hidden = false;
  }
}

async function readModel() {
  try {
    model = await askJson("/v1/model");
    find("model").textContent = `${model.model}, ${model.classes.length} classes, ${model.spec}`;
    find("model").title = model.spec;
    find("note").textContent = model.settings.note;
    find("note").hidden = !model.settings.note;
    detail.showsFrames = wall.showsFrames = labelling.showsFrames = model.settings.show_frames;
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
      wall.put(page.streams);
      after = page.next;
    }
    wall.keep(reading);
  } catch (error) {
    stale = true;
    if (error instanceof NeedsToken) askToken();
  }
  reading = null;
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

// What the address names is shown: #/label, #/label/NAME, #/try, #/operation, the name of a camera, or the wall.
function go(hash) {
  if (location.hash.slice(1) !== hash) location.hash = hash;
  else route();
}

const choose = (name) => go(name);

function route() {
  const hash = decodeURIComponent(location.hash.slice(1));
  const [, wanted, camera] = hash.match(/^\/(\w+)(?:\/([\w.-]+))?$/) ?? [];
  const tab = TABS.includes(wanted) ? wanted : "wall";
  const name = /^[\w.-]+$/.test(hash) ? hash : null;
  const opened = name && name !== detail.name;
  detail.open(name);
  if (tab !== "try") tryIt.close();
  for (const one of TABS) {
    find(one).hidden = one !== tab || (one === "wall" && name !== null);
    const button = find(`tab-${one}`);
    button.setAttribute("aria-selected", String(one === tab));
    button.tabIndex = one === tab ? 0 : -1;
  }
  find("detail").hidden = name === null;
  if (tab === "label") labelling.open(camera);
  if (opened) {
    scrollTo(0, 0);
    find("detail-title").focus({ preventScroll: true });
  }
}

function tryFrame(stream, image) {
  go("/try");
  tryIt.open(stream, image);
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

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
for (const [place, name] of TABS.entries()) {
  find(`tab-${name}`).addEventListener("click", () => go(name === "wall" ? "" : `/${name}`));
  find(`tab-${name}`).addEventListener("keydown", (event) => {
    const next = { ArrowRight: place + 1, ArrowLeft: place - 1 }[event.key];
    if (next === undefined) return;
    const other = find(`tab-${TABS[(next + TABS.length) % TABS.length]}`);
    other.focus();
    other.click();
  });
}
find("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(find("token").value);
  find("token").value = "";
  find("token-dialog").close();
  feed.restart();
});
addEventListener("hashchange", route);
route();
