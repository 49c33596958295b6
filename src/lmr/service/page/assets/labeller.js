// The choice of a class for an image, by button or key, or by typing where there are many classes: in lmr label and in
// the live page. Text only ever becomes textContent.

import { find, make } from "./dom.js";

const KEYS = "123456789abcdefghijklmnopqrstuvwxyz";

// onAct gets { action: "label", name }, where the name is null for none of these, or the action "skip" or "back". Keys
// act while isOpen.
export function makeLabeller({ onAct, isOpen = () => true }) {
  let names = [];
  let asking = false; // whether there is an image
  const types = () => names.length > KEYS.length; // so many classes that one types to find them
  const choose = (name) => asking && onAct({ action: "label", name });
  const skip = () => asking && onAct({ action: "skip" });
  const back = () => onAct({ action: "back" });

  function makeButtons() {
    const wanted = find("find").value.trim().toLowerCase();
    const starts = names.filter((name) => name.toLowerCase().startsWith(wanted));
    const others = names.filter((name) => !starts.includes(name) && name.toLowerCase().includes(wanted));
    const found = wanted ? [...starts, ...others] : names;
    find("classes").replaceChildren(
      ...found.map((name) => {
        const key = types() ? null : KEYS[names.indexOf(name)];
        const text = make("span", { text: name });
        return make("button", { type: "button", class: wanted ? "found" : null, onclick: () => choose(name) }, ...(key ? [make("kbd", { text: key }), text] : [text]));
      }),
    );
  }

  find("find").addEventListener("input", makeButtons);
  find("none").addEventListener("click", () => choose(null));
  find("skip").addEventListener("click", skip);
  find("back").addEventListener("click", back);
  document.addEventListener("keydown", (event) => {
    if (!isOpen() || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    if (event.target.closest("select, dialog, [role=tab]")) return;
    const typing = document.activeElement === find("find");
    const empty = find("find").value === "";
    if (event.key === "ArrowRight" && (!typing || empty)) skip();
    else if ((event.key === "ArrowLeft" || event.key === "Backspace") && (!typing || empty)) back();
    else if (event.key === "-" && (!typing || empty)) choose(null);
    else if (typing && event.key === "Enter") find("classes").querySelector("button.found")?.click();
    else if (!typing && !types() && KEYS.includes(event.key.toLowerCase())) {
      const name = names[KEYS.indexOf(event.key.toLowerCase())];
      if (name === undefined) return;
      choose(name);
    } else if (!typing && types() && event.key.length === 1) {
      find("find").focus();
      return;
    } else return;
    event.preventDefault();
  });

  // Asks for one of the classes of an image, which is a fresh one, or shows that there is none.
  return function ask(classes, { has, fresh }) {
    [names, asking] = [classes, has];
    for (const id of ["image", "none", "skip", "question", "classes"]) find(id).hidden = !has;
    find("find").hidden = !has || !types();
    if (!has || !fresh) return;
    find("find").value = "";
    makeButtons();
    if (types()) find("find").focus({ preventScroll: true });
  };
}
