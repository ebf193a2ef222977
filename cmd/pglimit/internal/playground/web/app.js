// The page: its cards, the controls for all cards, and the link with the set-up.

import { get, post } from "./api.js";
import { Card, copied, title, words } from "./card.js";
import { setUpReplay } from "./replay.js";
import { Balance, Slots } from "./spend.js";
import { Stream } from "./stream.js";
import { setUpTraffic } from "./traffic.js";

const element = (id) => document.getElementById(id);
const frame = 33; // ms between two frames
const defaultKey = "alice";

const key = element("key");
const status = element("status");
let outage; // the last problem event, until levels arrive
const problem = (e) => (element("problem").textContent = (e ?? outage)?.message ?? "");
const say = (text) => (element("said").textContent = text);
const page = { key: () => key.value.toWellFormed() || defaultKey, say, changed };

let cards = [];
const pools = { concurrency: new Slots(page), balance: new Balance(page) };
const card = (algorithm) => cards.find((c) => c.algorithm === algorithm) ?? pools[algorithm];

const stream = new Stream({
  connected: () => {
    state("connected", "connected");
    outage = undefined;
    problem(null); // remove "does not answer" here; describe() removes it on the cards
    describe();
  },
  lost: (why) => {
    if (status.dataset.state === "connected") gap();
    state("lost", `connection lost: ${why || "trying again …"}`);
  },
  paused: () => {
    gap();
    state("paused", "paused while the tab is hidden");
  },
  decision: (d) => card(d.algorithm)?.decision(d), // it may be from before an outage
  levels: (e) => {
    if (outage) problem((outage = undefined));
    for (const [algorithm, seen] of Object.entries(e.levels)) {
      card(algorithm)?.plot?.level(seen.at, seen.level);
      card(algorithm)?.level(seen);
    }
  },
  jobs: (jobs) => pools.concurrency.jobs(jobs),
  reset: () => {
    for (const c of [...cards, ...Object.values(pools)]) c.reset(stream.now());
  },
  problem: (e) => {
    gap();
    problem((outage = new Error(e.error)));
  },
});

function gap() {
  for (const c of cards) c.plot.gap(stream.now());
}

function state(name, words) {
  status.dataset.state = name;
  if (status.textContent !== words) status.textContent = words;
}

// Writes every value that differs from its default to the address.
function writeLink() {
  const link = new URLSearchParams();
  if (key.value !== defaultKey) link.set("key", key.value);
  for (const c of cards) {
    for (const [name, value] of Object.entries(c.changes())) link.set(`${c.algorithm}.${name}`, value);
  }
  history.replaceState(null, "", link.size ? "#" + link : location.pathname);
}

function readLink() {
  const link = new URLSearchParams(location.hash.slice(1));
  key.value = link.get("key") || defaultKey;
  for (const c of cards) {
    const own = [...link].filter(([name]) => name.startsWith(c.algorithm + "."));
    c.set(Object.fromEntries(own.map(([name, value]) => [name.slice(c.algorithm.length + 1), value])));
  }
}

let describing;
let wanted = 0; // answers to requests before the last change are ignored
function changed() {
  wanted++;
  writeLink();
  clearTimeout(describing);
  describing = setTimeout(describe, 150);
}

// Requests the policies in other forms, and whether they are valid.
async function describe() {
  const mine = ++wanted;
  const valid = [];
  const requests = [];
  for (const c of cards) {
    try {
      requests.push(c.request());
      valid.push(c);
    } catch (e) {
      c.described({ error: e.message, field: e.field });
    }
  }
  try {
    const answer = await post("/api/describe", { key: page.key(), policies: requests.map((a) => a.policy), costs: requests.map((a) => a.cost) });
    if (mine !== wanted) return;
    for (const [i, d] of answer.policies.entries()) valid[i].described(d);
    if (!cards.some((c) => c.failed)) problem(null);
  } catch (e) {
    if (mine === wanted) problem(e);
  }
}

async function sendAll(times, tell = say) {
  try {
    const requests = cards.map((c) => c.request());
    const a = await post("/api/send", { key: page.key(), times, requests });
    problem(null);
    tell(`All: ${a.allowed} allowed, ${a.delayed} delayed, ${a.denied} denied.`);
  } catch (e) {
    problem(new Error(e.algorithm ? `${title(e.algorithm)}: ${words(e)}` : e.message));
  }
}

let inFlight = 0; // protects a slow server
async function sendTraffic(times) {
  if (inFlight >= 4) return;
  inFlight++;
  await sendAll(times, () => {});
  inFlight--;
}

async function reset() {
  try {
    await post("/api/reset", { key: page.key() });
    problem(null);
    say("All counters are reset.");
  } catch (e) {
    problem(e);
  }
}

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link is copied.");
    copied(element("link"));
  } catch {
    problem(new Error("The browser does not let the page copy: copy the address from the address bar."));
  }
}

function changeKey() {
  changed();
  for (const c of [...cards, ...Object.values(pools)]) c.reset();
  stream.follow(page.key());
}

// Draws the visible plots, and updates the labels every two seconds.
function draw() {
  const inSight = new Set();
  const watch = new IntersectionObserver((seen) => {
    for (const e of seen) e.isIntersecting ? inSight.add(e.target) : inSight.delete(e.target);
  });
  for (const c of cards) watch.observe(c.plot.canvas);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let drawn = 0;
  let named = 0;
  const next = (time) => {
    if (time - drawn >= (calm.matches ? 1000 : frame)) {
      drawn = time;
      for (const c of cards) if (inSight.has(c.plot.canvas)) c.plot.draw(stream.now());
      for (const p of Object.values(pools)) p.draw(stream.now());
    }
    if (time - named >= 2000) {
      named = time;
      for (const c of cards) c.plot.canvas.setAttribute("aria-label", `${title(c.algorithm)}: ${c.plot.words(stream.now())}`);
    }
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
}

async function start() {
  let setup;
  try {
    setup = await get("/api/setup");
  } catch (e) {
    state("lost", "connection lost: trying again …");
    problem(e);
    setTimeout(start, 1000);
    return;
  }
  problem(null);
  element("database").textContent = setup.database;
  cards = setup.policies.map((p) => new Card(p, page));
  element("slots").before(...cards.map((c) => c.element));
  readLink();
  setUpTraffic(element("traffic"), element("rate"), () => card("fixed_window").windowEnds - stream.now(), sendTraffic);
  element("send-all").onclick = () => sendAll(1);
  element("burst-all").onclick = () => sendAll(10);
  element("reset").onclick = reset;
  element("link").onclick = copyLink;
  key.addEventListener("change", changeKey);
  addEventListener("hashchange", () => {
    readLink();
    changeKey();
  });
  setUpReplay(cards, setup.max_log_bytes);
  stream.follow(page.key());
  draw();
}

start();
