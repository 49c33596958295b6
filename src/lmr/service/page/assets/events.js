// Events as lines of a list, for the log and for one stream.

import { formatTime, make, setDot } from "./dom.js";
import { nameCameraColour } from "./words.js";

// With onChoose, the name of the stream is a button that opens it.
export function makeEvent(event, onChoose = null) {
  const text = make("span", { class: "message" });
  if (event.stream && onChoose) text.append(make("button", { type: "button", class: "who", text: event.stream, onclick: () => onChoose(event.stream) }), " ");
  text.append(event.message);
  if (event.after && event.before !== event.after) {
    const change = make("span", { class: "change", text: event.before ? `${event.before} → ${event.after}` : event.after });
    setDot(change, event.kind === "camera" ? nameCameraColour(event.after) : event.after);
    text.append(" ", change);
  }
  const time = make("time", { text: formatTime(event.time), datetime: new Date(1000 * event.time).toISOString() });
  return make("li", { "data-number": event.number, "data-kind": event.kind }, time, text);
}
