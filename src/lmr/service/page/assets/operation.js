// What waits, and the store. /metrics has throughput, latencies and batches.

import { makeSparkline } from "./charts.js";
import { find, formatAgo, formatBytes, formatNumber, make } from "./dom.js";
import { explain } from "./words.js";

const POINTS = 180; // seconds that a sparkline shows at most

const TILES = [
  {
    title: "Queue",
    lines: [(now) => now.queue_images],
    value: (now) => [formatNumber(now.queue_images), "images wait"],
    under: (now) => `${now.queue_requests} requests, ${now.in_flight} in work`,
  },
  {
    title: "Store",
    lines: [(now) => now.unsaved],
    value: (now) => (now.durable ? [formatBytes(now.store_bytes), ""] : ["none", "states are in memory"]),
    under: (now, time) => (now.durable ? `written ${formatAgo(now.last_commit && time - now.last_commit)}` : ""),
  },
];

export function makeTiles() {
  const tiles = TILES.map((tile) => {
    const spark = makeSparkline(34, tile.lines.length);
    const value = make("p", { class: "value" });
    const under = make("p", { class: "under" });
    find("tiles").append(make("article", { class: "tile" }, make("h2", {}, tile.title, " ", explain(tile.title.toLowerCase())), value, under, spark.element));
    return { ...tile, spark, valueLine: value, underLine: under, history: tile.lines.map(() => []) };
  });
  return (now, time) => {
    for (const tile of tiles) {
      const [number, unit] = tile.value(now);
      tile.valueLine.replaceChildren(`${number} `, make("small", { text: unit }));
      tile.underLine.textContent = tile.under(now, time);
      tile.lines.forEach((read, line) => {
        tile.history[line].push(read(now));
        if (tile.history[line].length > POINTS) tile.history[line].shift();
      });
      if (!find("operation").hidden) tile.spark.update(tile.history);
    }
  };
}
