// Numbers, times and keys as people read them.

import { h } from "./dom.js";

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4, roundingMode: "trunc" });

/** Formats units or a count. */
export function number(v) {
  if (v === undefined || v === null) return "–";
  if (Math.abs(v) >= 1e9) return compact.format(v);
  if (v !== 0 && Math.abs(v) < 0.01) return String(Number(v.toPrecision(2)));
  return Number(v.toFixed(2)).toLocaleString("en");
}

/** Formats a share of 1 as a percentage that is 100 only if it is at least that. */
export function percent(share) {
  const p = share * 100;
  return `${p >= 99.95 && p < 100 ? "99.9" : number(Number(p.toFixed(1)))} %`;
}

const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** Formats seconds in their largest unit, with the next one if there are fewer than ten of it. */
export function span(s) {
  const whole = Math.max(0, Math.round(s));
  const i = units.findIndex(([, size]) => whole >= size);
  if (i < 0) return "0 s";
  const [name, size] = units[i];
  const [next, part] = units[i + 1] ?? ["", 1];
  const rest = Math.floor((whole % size) / part);
  return `${Math.floor(whole / size)} ${name}${whole < 10 * size && rest ? ` ${rest} ${next}` : ""}`;
}

/** Returns an element of a time, in words relative to now, both as the server writes them. */
export function when(time, now) {
  if (!time) return "–";
  const s = (Date.parse(time) - Date.parse(now)) / 1000;
  const words = s > 0 ? `in ${span(s)}` : s > -1 ? "now" : `${span(-s)} ago`;
  return h("time", { datetime: time, title: new Date(time).toLocaleString() }, words);
}

/** Formats the time of day. */
export const clock = (time) => new Date(time).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

const hidden = /([\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs})/u;

/** Returns an element of text that others wrote. Characters that are not visible, or that change the direction of text, are shown by their numbers. */
export function foreign(text, kind = "text") {
  const parts = text.split(hidden).filter(Boolean);
  const shown = parts.map((part) => (hidden.test(part) && !(kind === "text" && part === "\n") ? h("span", { class: "hidden-char" }, "U+" + part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")) : part));
  return h("bdi", { class: kind, dir: "auto" }, shown);
}

/** Returns an element of a key; a brief one has two lines at most. */
export const keyText = (key, brief) => foreign(key, brief ? "key brief" : "key");

const names = {
  leaky_bucket: "leaky bucket", leaky_bucket_queue: "leaky bucket, queue", token_bucket: "token bucket", gcra: "GCRA",
  fixed_window: "fixed window", sliding_window_counter: "sliding window counter", sliding_window_log: "sliding window log",
};

export const algorithms = Object.keys(names);

/** Returns the name of an algorithm. */
export const algorithm = (a) => (Object.hasOwn(names, a) ? names[a] : a);

/** Returns a duration without units of zero at its end. */
export const duration = (text = "") => text.replace(/(?<=[mh])0[sm](0s)?$/, "");

/** Returns a policy's limit in words, such as "600 per 1m, burst 100". */
export function limit(p) {
  if (p.algorithm === "balance") return `prepaid units${p.overdraft ? `, up to ${number(p.overdraft)} owed` : ""}`;
  if (p.algorithm === "concurrency") return `${number(p.limit)} at once, each for ${duration(p.period)} unless renewed`;
  const per = p.calendar ? `calendar ${p.calendar}${p.time_zone ? `, ${p.time_zone}` : ""}${p.anchor ? `, from ${p.anchor}` : ""}` : duration(p.period);
  return `${number(p.limit)} per ${per}${p.burst ? `, burst ${number(p.burst)}` : ""}`;
}

/** Encodes text for the fragment of the URL, and decodes it; text that cannot be decoded is undefined. */
export const encode = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
export function decode(text) {
  try {
    const bytes = Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return undefined;
  }
}
