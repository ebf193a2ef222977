// The keys that begin with what is typed into the field for a key.

import { call } from "./api.js";
import { h } from "./dom.js";
import { encode, keyText } from "./format.js";

const form = document.getElementById("find");
const field = document.getElementById("find-key");
const list = document.getElementById("found");
let typing;
let asked = 0; // answers to earlier questions are ignored

function close() {
  clearTimeout(typing);
  asked++;
  list.replaceChildren();
}

/** Begins to search. ready reports whether the tables have keys that can be searched, and say announces what was found. */
export function search(ready, say) {
  field.addEventListener("input", () => {
    close();
    typing = setTimeout(look, 150);
  });
  async function look() {
    const prefix = field.value.toWellFormed();
    const mine = ++asked;
    if (!prefix || !ready()) return;
    const found = await call("search", { prefix }).catch(() => undefined); // the page says what is wrong
    if (mine !== asked || !found) return;
    list.replaceChildren(...found.keys.map((key) => h("li", null, h("a", { href: `#/key/${encode(key)}` }, keyText(key, true)))), found.more ? h("li", { class: "quiet small" }, "… and more: type on") : "");
    say(`${found.keys.length}${found.more ? " or more" : ""} keys begin so.`);
  }
  form.addEventListener("focusout", (e) => form.contains(e.relatedTarget) || close());
  form.addEventListener("keydown", (e) => {
    const links = [field, ...list.querySelectorAll("a")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (e.key === "Escape") {
      field.focus();
      close();
    } else if (step && links.length > 1) {
      e.preventDefault();
      links.at((links.indexOf(document.activeElement) + step) % links.length).focus();
    }
  });
  addEventListener("hashchange", close);
}
