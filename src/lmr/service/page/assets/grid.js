// The grid of streams on a canvas: large tiles with names while they fit, small squares for thousands.

import { find, HEALTHS, nameColour } from "./dom.js";

const TALL = 420; // pixels that the grid may take before cells shrink
const SMALLEST = 5;
const TILE = { wide: 132, tall: 46 };
const QUIET = 60; // seconds without a request, after which a stream is drawn faintly

export function makeGrid(onChoose) {
  const canvas = find("grid");
  const tip = find("tip");
  const context = canvas.getContext("2d");
  const statuses = new Map();
  let order = []; // names in order, as shown
  let sorted = true;
  let cell = { wide: TILE.wide, tall: TILE.tall, columns: 1, named: true };
  let chosen = null;
  let pointed = null;
  let search = "";
  let health = null;
  let waiting = false;
  let colours = {};

  // A canvas does not know the colours of the style sheet by name: an element is asked what they are now.
  function readColours() {
    const probe = canvas.parentElement.appendChild(document.createElement("span"));
    const read = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    colours = Object.fromEntries(HEALTHS.map((one) => [one, read(nameColour(one))]));
    for (const name of ["ink", "soft", "faint", "panel", "focus", "line"]) colours[name] = read(`--${name}`);
    probe.remove();
  }

  const isShown = (status) => (!health || status.health === health) && (!search || status.stream.toLowerCase().includes(search));

  function sort() {
    order = [];
    for (const [name, status] of statuses) if (isShown(status)) order.push(name);
    order.sort((one, other) => (one < other ? -1 : one > other ? 1 : 0));
    sorted = true;
  }

  // The largest cells with which all streams fit into the height; named tiles only where names can be read.
  function layOut() {
    const wide = canvas.parentElement.clientWidth;
    const count = Math.max(1, order.length);
    const tiles = Math.max(1, Math.floor(wide / TILE.wide));
    if (Math.ceil(count / tiles) * TILE.tall <= TALL) cell = { wide: wide / tiles, tall: TILE.tall, columns: tiles, named: true };
    else {
      let size = 26;
      while (size > SMALLEST && Math.ceil(count / Math.floor(wide / size)) * size > TALL) size -= 1;
      const columns = Math.floor(wide / size);
      cell = { wide: wide / columns, tall: size, columns, named: false };
    }
    const tall = Math.ceil(count / cell.columns) * cell.tall;
    const scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(wide * scale) || canvas.height !== Math.round(tall * scale)) {
      canvas.width = Math.round(wide * scale);
      canvas.height = Math.round(tall * scale);
      canvas.style.height = `${tall}px`;
    }
    context.setTransform(scale, 0, 0, scale, 0, 0);
  }

  function drawTile(status, x, y) {
    const [wide, tall] = [cell.wide - 6, cell.tall - 6];
    context.fillStyle = colours[status.health] ?? colours.faint;
    context.fillRect(x, y, 5, tall);
    context.globalAlpha *= 0.13;
    context.fillRect(x + 5, y, wide - 5, tall);
    context.globalAlpha = 1;
    context.save();
    context.beginPath();
    context.rect(x, y, wide - 4, tall);
    context.clip();
    context.fillStyle = colours.ink;
    context.font = "600 13px system-ui, sans-serif";
    context.fillText(status.stream, x + 13, y + 17);
    context.fillStyle = colours.soft;
    context.font = "12px system-ui, sans-serif";
    context.fillText(status.health, x + 13, y + 33);
    context.restore();
  }

  function draw() {
    waiting = false;
    if (!sorted) sort();
    layOut();
    context.clearRect(0, 0, canvas.width, canvas.height);
    const now = Date.now() / 1000;
    const gap = cell.named ? 6 : cell.tall > 12 ? 2 : 1;
    order.forEach((name, index) => {
      const status = statuses.get(name);
      const x = (index % cell.columns) * cell.wide;
      const y = Math.floor(index / cell.columns) * cell.tall;
      context.globalAlpha = now - status.updated > QUIET ? 0.5 : 1;
      if (cell.named) drawTile(status, x, y);
      else {
        context.fillStyle = colours[status.health] ?? colours.faint;
        context.fillRect(x, y, cell.wide - gap, cell.tall - gap);
      }
      context.globalAlpha = 1;
      if (name === chosen || name === pointed) {
        context.strokeStyle = name === chosen ? colours.ink : colours.focus;
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, cell.wide - gap - 2, cell.tall - gap - 2);
      }
    });
    find("grid-empty").hidden = order.length > 0;
    canvas.hidden = order.length === 0;
    find("grid-empty").textContent = statuses.size ? "No stream is like that." : "No stream yet. A stream begins with its first request.";
  }

  function redraw() {
    if (!waiting) {
      waiting = true;
      requestAnimationFrame(draw);
    }
  }

  function findAt(event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / cell.wide);
    const line = Math.floor((event.clientY - box.top) / cell.tall);
    return column < cell.columns ? (order[line * cell.columns + column] ?? null) : null;
  }

  function point(name, event) {
    if (name !== pointed) {
      pointed = name;
      redraw();
    }
    const status = statuses.get(name);
    tip.hidden = !status || !event;
    if (tip.hidden) return;
    tip.textContent = `${status.stream} · ${status.health} · ${status.seq.toLocaleString("en")} requests`;
    const box = canvas.parentElement.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${event.clientY - box.top + 18}px`;
  }

  canvas.addEventListener("pointermove", (event) => point(findAt(event), event));
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", (event) => {
    const name = findAt(event);
    if (name) onChoose(name);
  });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -cell.columns, ArrowDown: cell.columns };
    const at = order.indexOf(pointed ?? chosen);
    if (event.key in steps) {
      pointed = order[Math.min(order.length - 1, Math.max(0, at < 0 ? 0 : at + steps[event.key]))] ?? null;
      canvas.setAttribute("aria-label", `Streams; ${pointed}, ${statuses.get(pointed)?.health}`);
      redraw();
    } else if (event.key === "Enter" && pointed) onChoose(pointed);
    else return;
    event.preventDefault();
  });
  new ResizeObserver(redraw).observe(canvas.parentElement);
  readColours();

  return {
    statuses,
    get first() {
      if (!sorted) sort();
      return order[0] ?? null;
    },
    put(changed) {
      for (const status of changed) {
        const before = statuses.get(status.stream);
        if (before && before.change > status.change) continue;
        if (status.health === "deleted") statuses.delete(status.stream);
        else statuses.set(status.stream, status);
        if (!before || status.health === "deleted" || isShown(before) !== isShown(status)) sorted = false;
      }
      redraw();
    },
    keep(names) {
      for (const name of [...statuses.keys()]) if (!names.has(name)) statuses.delete(name);
      sorted = false;
      redraw();
    },
    choose(name) {
      chosen = name;
      redraw();
    },
    filter(text, only) {
      search = text.trim().toLowerCase();
      health = only;
      sorted = false;
      redraw();
    },
    recolour() {
      readColours();
      redraw();
    },
  };
}
