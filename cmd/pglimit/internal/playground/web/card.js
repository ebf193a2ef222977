// A card: one algorithm with its policy as controls, its traffic and its results.

import { Failure, post } from "./api.js";
import { Plot, short } from "./plot.js";

const about = {
  leaky_bucket: ["Leaky bucket, meter", "A bucket that leaks at the limit’s rate. A request that would overflow it is denied."],
  leaky_bucket_queue: ["Leaky bucket, queue", "Requests wait for evenly spaced turns. If the queue is full, they are denied."],
  token_bucket: ["Token bucket", "Each request takes a token. Tokens come back at the limit’s rate, up to the burst."],
  gcra: ["GCRA", "The generic cell rate algorithm: a token bucket, computed from arrival times."],
  fixed_window: ["Fixed window", "Counts to the limit in each window. Around a window’s edge twice the limit can pass."],
  sliding_window_counter: ["Sliding window counter", "Adds the share of the previous window that is still within the period."],
  sliding_window_log: ["Sliding window log", "Keeps every request of a period. Exact: never more than the limit in any period."],
};

export const title = (algorithm) => about[algorithm]?.[0] ?? algorithm;

const buckets = ["leaky_bucket", "leaky_bucket_queue", "token_bucket", "gcra"];
const calendars = ["", "hour", "day", "week", "month", "quarter", "year"];

// The controls: name, label, kind, and the algorithms that have it.
const controls = [
  ["limit", "Limit", "number"],
  ["period", "Period", "text", "such as 10s, 1m or 1h30m"],
  ["burst", "Burst", "number", "units allowed at once; empty: the limit", buckets],
  ["tick", "Tick", "text", "leak in whole steps, such as 2s; empty: continuously", ["leaky_bucket"]],
  ["aligned", "Aligned", "checkbox", "align windows to the clock, not to the first request", ["fixed_window"]],
  ["calendar", "Calendar", calendars, "windows of the calendar instead of a period", ["fixed_window"]],
  ["time_zone", "Time zone", "text", "of the calendar, such as Europe/Vienna; empty: UTC", ["fixed_window"]],
  ["anchor", "Anchor", "text", "where a period of the calendar begins, such as 2024-01-31 or 2024-01-31T09:30", ["fixed_window"]],
  ["block_for", "Block for", "text", "block a key for this long after a denial, such as 5s; empty: no block"],
  ["cost", "Cost", "number", "units per request"],
];

/** Returns a failure's message, with the control's label instead of the server's field name. */
export function words({ error, message = error, field = "" }) {
  const label = controls.find(([name]) => name === field)?.[1];
  const [first] = message.match(/^\w*/);
  const about = first === field || first.toLowerCase() === field.replace("_", "");
  return label && about ? label + message.slice(first.length) : message;
}

const burst = 10;

/** Shows "Copied" on a button for a moment. */
export function copied(button) {
  button.dataset.words ??= button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = button.dataset.words), 1500);
}

export class Card {
  #inputs = {};
  #described = {}; // the policy as Go, command and curl
  #shownAt = 0;
  windowEnds = 0; // by the last decision; of the fixed window
  #counts = { allowed: 0, delayed: 0, denied: 0 };

  /** page has key(), say(text), changed(). */
  constructor(policy, page) {
    this.algorithm = policy.algorithm;
    this.page = page;
    this.element = document.getElementById("card").content.firstElementChild.cloneNode(true);
    this.element.id = `card-${this.algorithm}`;
    const heading = this.find("h2");
    heading.textContent = title(this.algorithm);
    heading.id = `title-${this.algorithm}`;
    this.element.setAttribute("aria-labelledby", heading.id);
    this.find(".about").textContent = about[this.algorithm]?.[1] ?? "";
    for (const [selector, what] of [[".controls", "policy"], [".headers", "last answer"], [".go", "policy as Go"], [".command", "policy as a command"], [".curl", "policy as curl"]]) {
      this.find(selector).setAttribute("aria-label", `${title(this.algorithm)}: ${what}`);
    }
    this.find("dd.delayed").parentElement.hidden = this.algorithm !== "leaky_bucket_queue"; // no other delays
    for (const control of controls) this.#control(...control);
    this.defaults = { ...policy, cost: 1 };
    this.set({});
    this.plot = new Plot(this.find("canvas"));
    this.find(".send").onclick = () => this.#click(1);
    this.find(".burst-10").onclick = () => this.#click(burst);
    for (const b of this.element.querySelectorAll(".copy")) b.onclick = () => this.#copy(b);
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  #control(name, label, kind, help, algorithms) {
    if (algorithms && !algorithms.includes(this.algorithm)) return;
    const input = document.createElement(Array.isArray(kind) ? "select" : "input");
    input.name = name;
    if (help) input.title = help;
    if (Array.isArray(kind)) input.append(...kind.map((v) => new Option(v || "none", v)));
    else input.type = kind;
    if (kind === "number") Object.assign(input, { step: "any", min: 0, inputMode: "decimal" });
    if (kind === "text") Object.assign(input, { spellcheck: false, autocomplete: "off" });
    const field = document.createElement("label");
    field.className = kind === "checkbox" ? "field check" : "field";
    if (kind === "checkbox") field.append(input, label);
    else field.append(label, input);
    input.addEventListener("input", () => {
      this.#follow();
      this.page.changed();
    });
    this.#inputs[name] = input;
    this.find(".controls").append(field);
  }

  // A calendar replaces the period.
  #follow() {
    const { calendar, period, time_zone: zone, anchor } = this.#inputs;
    if (!calendar) return;
    period.disabled = calendar.value !== "";
    zone.disabled = anchor.disabled = calendar.value === "";
  }

  /** Sets the controls to values, or to their defaults if values lacks them. */
  set(values) {
    for (const [name, input] of Object.entries(this.#inputs)) {
      const v = values[name] ?? this.defaults[name] ?? "";
      if (input.type === "checkbox") input.checked = String(v) === "true";
      else input.value = v;
    }
    this.#follow();
  }

  /** Returns the values that differ from their defaults. */
  changes() {
    const changes = {};
    for (const [name, input] of Object.entries(this.#inputs)) {
      const v = input.type === "checkbox" ? String(input.checked) : input.value;
      if (!input.disabled && v !== String(this.defaults[name] ?? (input.type === "checkbox" ? false : ""))) changes[name] = v;
    }
    return changes;
  }

  /** Returns the policy of the controls. Throws a Failure that names the control. */
  policy() {
    const p = { algorithm: this.algorithm };
    for (const [name, input] of Object.entries(this.#inputs)) {
      if (name !== "cost" && !input.disabled) this.#read(p, name, input);
    }
    return p;
  }

  request() {
    const request = { policy: this.policy() };
    this.#read(request, "cost", this.#inputs.cost);
    return request;
  }

  #read(into, name, input) {
    if (input.type === "checkbox") {
      if (input.checked) into[name] = true;
    } else if (input.type === "number") {
      if (input.value === "" && !input.validity.badInput && name === "burst") return;
      if (Number.isNaN(input.valueAsNumber)) throw new Failure({ error: `${name} is not a number: enter one, such as 10`, field: name, algorithm: this.algorithm });
      into[name] = input.valueAsNumber;
    } else if (input.value.trim() !== "") {
      into[name] = input.value.trim();
    }
  }

  /** Shows the server's answer about the policy: its other forms, or its error. */
  described(d) {
    this.problem(d.error ? d : null);
    this.#described = d;
    for (const form of ["go", "command", "curl"]) this.find("." + form).textContent = d[form] ?? "";
    if (d.error) return;
    const p = this.policy();
    this.plot.capacity = p.burst || p.limit;
    this.find(".policy summary").textContent = `Limit ${short(p.limit)} per ${p.calendar ?? p.period}`;
    this.plot.steps = Boolean(p.tick) || /fixed|log/.test(this.algorithm);
  }

  /** Shows a failure on the card and its control; null removes it. */
  problem(failure) {
    this.failed = failure;
    const text = failure ? words(failure) : "";
    const shown = this.find(".problem");
    if (shown.textContent !== text) shown.textContent = text;
    for (const [name, input] of Object.entries(this.#inputs)) {
      if (failure && name === failure.field) {
        input.setAttribute("aria-invalid", "true");
        this.find(".policy").open = true;
      } else input.removeAttribute("aria-invalid");
    }
  }

  /** Sends the card’s request times times at once, and shows a failure on the card. */
  async send(times) {
    try {
      const answer = await post("/api/send", { key: this.page.key(), times, requests: [this.request()] });
      this.problem(null);
      return answer;
    } catch (e) {
      this.problem(e);
    }
  }

  async #click(times) {
    const a = await this.send(times);
    if (a) this.page.say(`${title(this.algorithm)}: ${a.allowed} allowed, ${a.delayed} delayed, ${a.denied} denied.`);
  }

  async #copy(button) {
    const form = button.dataset.copy;
    if (!this.#described[form]) return;
    try {
      await navigator.clipboard.writeText(this.#described[form]);
      this.page.say(`Copied ${form}.`);
      copied(button);
    } catch {
      getSelection().selectAllChildren(this.find("." + form));
      this.page.say("The browser does not let the page copy: the text is selected.");
    }
  }

  decision(d) {
    this.plot.hit(d);
    this.plot.capacity = d.burst;
    this.windowEnds = d.at + d.reset_after_s * 1000;
    this.#count(d.outcome, this.#counts[d.outcome] + 1);
    this.level(d);
    const phrase = { 200: "OK", 413: "Request Entity Too Large", 429: "Too Many Requests" }[d.status];
    const line = `HTTP/1.1 ${d.status} ${phrase}`;
    const lines = [line, ...d.headers.map(([name, value]) => `${name}: ${value}`)];
    this.find(".headers").textContent = lines.join("\n") + (d.body ? "\n\n" + d.body : "");
  }

  /** Shows a level, unless a later one is already shown. */
  level({ at, level, remaining }) {
    if (at < this.#shownAt) return;
    this.#shownAt = at;
    this.find(".level").textContent = short(level, this.plot.capacity);
    this.find(".remaining").textContent = short(remaining, this.plot.capacity);
  }

  /** Clears the card. The level is 0 from at on; without at it is unknown. */
  reset(at) {
    for (const outcome of Object.keys(this.#counts)) this.#count(outcome, 0);
    this.plot.clear(at);
    this.#shownAt = this.windowEnds = 0;
    this.find(".level").textContent = "0";
    this.find(".remaining").textContent = short(this.plot.capacity);
    this.find(".headers").textContent = "no answer yet";
  }

  #count(outcome, n) {
    this.#counts[outcome] = n;
    const shown = this.find(".counts ." + outcome + "[data-count]");
    shown.dataset.count = shown.textContent = n;
  }
}
