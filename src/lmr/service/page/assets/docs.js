// The description of the API as a page, from /openapi.json.

import { find, make } from "./dom.js";

const plain = (text = "") => text.replaceAll("``", "");

function describeType(schema = {}) {
  if (schema.anyOf) return schema.anyOf.map(describeType).filter((type) => type !== "null").join(" or ");
  if (schema.enum) return schema.enum.join(" | ");
  const limits = [["at least ", schema.minimum], ["at most ", schema.maximum], ["default ", schema.default]];
  const parts = limits.filter(([, value]) => value !== undefined && value !== null && value !== "").map(([word, value]) => word + value);
  return [schema.type ?? "", ...parts].filter(Boolean).join(", ");
}

function makeTable(rows) {
  const lines = rows.map(([head, ...cells]) => make("tr", {}, make("th", { text: head }), ...cells.map((cell) => make("td", { text: cell }))));
  return make("table", {}, make("tbody", {}, ...lines));
}

function makeRoute(path, verb, route) {
  const id = `${verb}${path}`;
  const box = make("section", { class: "panel route", id });
  box.append(make("h3", {}, make("span", { class: "verb", text: verb.toUpperCase() }), make("code", { text: path })), make("p", { text: plain(route.description ?? route.summary) }));
  const bodies = Object.keys(route.requestBody?.content ?? {});
  const rows = (route.parameters ?? []).map(({ name, in: where, schema, description }) => [name, where, describeType(schema), plain(description)]);
  if (bodies.length) rows.push(["body", "", bodies.join(", "), ""]);
  if (rows.length) box.append(makeTable(rows));
  box.append(makeTable(Object.entries(route.responses).map(([code, answer]) => [code, plain(answer.description)])));
  const link = make("a", { href: `#${encodeURIComponent(id)}` }, make("span", { class: "verb", text: verb.toUpperCase() }), make("span", { text: `${path}: ${route.summary}` }));
  return [box, link];
}

const described = await (await fetch("/openapi.json")).json();
find("about").textContent = described.info.description;
for (const [path, verbs] of Object.entries(described.paths)) {
  for (const [verb, route] of Object.entries(verbs)) {
    const [box, link] = makeRoute(path, verb, route);
    find("routes").append(box);
    find("contents").append(link);
  }
}
