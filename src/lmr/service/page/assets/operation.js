// The operating figures: what the service does now, and over the last minutes.

import { makeSparkline } from "./charts.js";
import { find, formatAgo, formatBytes, formatNumber, isNumber, make } from "./dom.js";
import { explain } from "./words.js";

const POINTS = 180; // seconds that a sparkline shows at most

const TILES = [
  {
    title: "Throughput",
    lines: [(now) => now.images_per_second],
    value: (now) => [formatNumber(now.images_per_second), "images/s"],
    under: (now) => `${formatNumber(now.steps_per_second)} steps/s`,
  },
  {
    title: "Latency",
    lines: [(now) => now.latency_p50_ms, (now) => now.latency_p99_ms],
    value: (now) => [formatNumber(now.latency_p50_ms), "ms p50"],
    under: (now) => `p99 ${formatNumber(now.latency_p99_ms)} ms`,
  },
  {
    title: "Queue",
    lines: [(now) => now.queue_images],
    value: (now) => [formatNumber(now.queue_images), "images wait"],
    under: (now) => `${now.queue_requests} requests, ${now.in_flight} in work`,
  },
  {
    title: "Batch",
    lines: [(now) => now.batch_images],
    value: (now, limits) => [formatNumber(now.batch_images), limits ? `of ${limits.max_batch} images` : "images"],
    under: (now) => (isNumber(now.step_ms) ? `${formatNumber(now.batch_streams)} streams, ${formatNumber(now.step_ms)} ms` : "none yet"),
  },
  {
    title: "Store",
    lines: [(now) => now.commit_ms],
    value: (now) => (now.durable ? [formatBytes(now.store_bytes), ""] : ["none", "states are in memory"]),
    under: (now, limits, time) => (now.durable ? `written ${formatAgo(now.last_commit && time - now.last_commit)}${isNumber(now.commit_ms) ? `, ${formatNumber(now.commit_ms)} ms` : ""}` : ""),
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
  return (now, limits, time) => {
    for (const tile of tiles) {
      const [number, unit] = tile.value(now, limits);
      tile.valueLine.replaceChildren(`${number} `, make("small", { text: unit }));
      tile.underLine.textContent = tile.under(now, limits, time);
      tile.lines.forEach((read, line) => {
        tile.history[line].push(read(now));
        if (tile.history[line].length > POINTS) tile.history[line].shift();
      });
      if (!find("operation").hidden) tile.spark.update(tile.history);
    }
  };
}
