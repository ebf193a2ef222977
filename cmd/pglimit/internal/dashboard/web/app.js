// The page: which part of it is shown, and keeping that up to date.

import { act } from "./actions.js";
import { call, hasToken, takeToken } from "./api.js";
import { h, update } from "./dom.js";
import { decode, encode, keyText } from "./format.js";
import { key, keys, keysLink } from "./keys.js";
import { doctorPage, overview } from "./overview.js";
import { policies, policy } from "./policies.js";
import { search } from "./search.js";

const element = (id) => document.getElementById(id);
const main = element("main");
const nowhere = { title: () => "Not found", load: async () => ({}), render: () => h("p", null, "The dashboard has no such page. ", h("a", { href: "#/" }, "Overview")) };

// Returns the page of the address, and what the address says about it. Names of keys are
// in the fragment, which browsers do not send to servers.
function route() {
  return { hash: location.hash, ...shown(location.hash) };
}

function shown(hash) {
  const [path, query] = hash.slice(1).split("?");
  const [, page = "", rest] = path.split("/");
  const text = rest && (page === "policies" ? plain(rest) : decode(rest));
  switch (page) {
    case "":
      return { view: overview, nav: "overview", ...overview.params(new URLSearchParams(query)) };
    case "policies":
      return rest ? { view: policy, nav: "policies", name: text ?? rest, ...policy.params(new URLSearchParams(query)) } : { view: policies, nav: "policies" };
    case "keys":
      return { view: keys, nav: "keys", ...keys.params(new URLSearchParams(query)) };
    case "key": // as the tables have it
    case "find": // as a caller has it
      return text ? { view: key, nav: "keys", key: text, stored: page === "key", ...key.params(new URLSearchParams(query)) } : { view: nowhere };
    case "doctor":
      return { view: doctorPage, nav: "doctor" };
  }
  return { view: nowhere };
}

function plain(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

let setup; // of the server
let at; // what is shown
let data; // of it
let updated; // when that came, as the time of day
let wanted = 0; // answers to earlier requests are ignored
let timer;
const seen = new Map(); // the last data of each address

const say = (text) => {
  element("said").textContent = "";
  element("said").textContent = text;
};

function paint() {
  if (!data || !setup) return;
  const width = Math.max(280, Math.floor(main.clientWidth - 32));
  update(main, [heading(), at.view.render(data, { ...at, setup, width })]);
}

const heading = () => h("h2", { tabindex: "-1", "data-id": "heading" }, at.view.title(at));

function status(state, text) {
  element("status").dataset.state = state;
  if (element("status").textContent !== text) element("status").textContent = text;
}

let failed = ""; // why the last change was not made

// Shows that the data are not those of now, and why; no reason removes that.
function stale(why) {
  const text = why ? `${why} ${updated ? `The data are those of ${updated}.` : "There are no data yet."} Trying again …` : failed;
  if (element("banner").textContent !== text) element("banner").textContent = text;
  document.body.classList.toggle("stale", Boolean(why));
  if (why) status("lost", "not up to date");
}

// Loads what is shown, and again after a while.
async function refresh() {
  const mine = ++wanted;
  clearTimeout(timer);
  try {
    if (!setup || document.body.classList.contains("stale")) await meet();
    const answer = await at.view.load(at);
    if (mine !== wanted) return;
    data = answer;
    if (seen.size > 50) seen.clear();
    seen.set(at.hash, data); // the address may have changed since
    updated = new Date().toLocaleTimeString("en-GB");
    stale("");
    status("connected", `live, updated at ${updated}`);
    paint();
    restore();
  } catch (e) {
    if (mine !== wanted) return;
    if (e.away) {
      stale(e.gone ? e.message : `The database does not answer: ${e.message}.`.replace(/\.\.$/, "."));
    } else if (e.field || e.message) {
      stale("");
      status("connected", "connected");
      update(main, [heading(), h("p", { class: "problem", role: "alert" }, e.message)]);
      console.debug(e);
    }
  }
  const every = setup?.refresh_ms ?? 1000;
  if (!document.hidden) timer = setTimeout(refresh, document.body.classList.contains("stale") ? every : Math.max(every, at.view.every ?? 0));
}

// Reads what the server is, which may be another after an outage.
async function meet() {
  setup = await call("setup");
  const rights = setup.write ? " · you can make changes" : hasToken() ? " · no changes: the token of this tab is not valid any more, so open the URL that pglimit dashboard --write printed" : "";
  const text = `${setup.database} · ${setup.version}${rights}`;
  if (element("database").textContent !== text) element("database").textContent = text;
}

// The place on a page that the user comes back to.
let place;
function restore() {
  if (place === undefined) return;
  scrollTo(0, place);
  place = undefined;
}

function go(event) {
  if (takeToken()) setup = undefined; // it may be of another server
  at = route();
  failed = "";
  data = seen.get(at.hash);
  for (const a of document.querySelectorAll("nav a")) {
    if (a.dataset.page === at.nav) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  document.title = [at.key ? "Key " + keyText(at.key).textContent : [at.view.title(at)].flat().join(""), "pglimit dashboard"].join(" – ");
  place = history.state?.y ?? 0;
  update(main, heading());
  if (event) main.querySelector("h2").focus({ preventScroll: true });
  if (data) {
    paint();
    restore();
  }
  refresh();
}

history.scrollRestoration = "manual";
let noted;
addEventListener("scroll", () => {
  clearTimeout(noted);
  const where = location.hash;
  noted = setTimeout(() => where === location.hash && history.replaceState({ y: scrollY }, ""), 100);
}, { passive: true });
addEventListener("hashchange", go);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refresh()));
new ResizeObserver(() => at && paint()).observe(main);

document.addEventListener("click", async (e) => {
  const button = e.target.closest("[data-do]");
  if (!button) return;
  if (button.dataset.do === "skip") {
    e.preventDefault();
    main.focus();
    return;
  }
  if (button.dataset.do === "span") {
    history.replaceState(history.state, "", `${(location.hash || "#/").split("?")[0]}?hours=${button.dataset.hours}`);
    at = route();
    refresh();
    return;
  }
  failed = "";
  try {
    if (await act(button, { key: at.key, stored: at.stored }, data, say)) refresh();
  } catch (failure) {
    failed = failure.message;
    refresh();
  }
});

element("find").addEventListener("submit", (e) => {
  e.preventDefault();
  const text = element("find-key").value.toWellFormed();
  if (text) location.hash = `#/find/${encode(text)}`;
});

search(() => setup && !setup.hashed, say);

let typing;
main.addEventListener("input", (e) => {
  const form = e.target.form;
  if (form?.id !== "filters") return;
  clearTimeout(typing);
  typing = setTimeout(() => {
    const values = Object.fromEntries(new FormData(form));
    history.replaceState(history.state, "", keysLink({ ...values, prefix: values.prefix.toWellFormed() }));
    at = route();
    refresh();
  }, 200);
});
main.addEventListener("submit", (e) => e.preventDefault());

go();
