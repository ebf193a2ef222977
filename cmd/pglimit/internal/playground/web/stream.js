// The events of one key, and the database's clock.

import { refusal } from "./api.js";

const retryAfter = 1000;
// ms after which a hidden tab ends its stream. A browser opens at most six connections
// to a host: six streams would leave none for requests.
const restAfter = 5000;
const setBack = 5000; // ms: a larger delay means that a clock was set, not that a message is late

export class Stream {
  #source;
  #timer;
  #rest;
  #lead = Infinity; // ms that this machine's clock is ahead of the database's; an estimate

  /** on has decision(d), levels(l), jobs(list), reset(), problem(p), connected(), paused() and lost(why); why is "" if unknown. */
  constructor(on) {
    this.on = on;
    const look = () => {
      clearTimeout(this.#rest);
      if (document.hidden) this.#rest = setTimeout(() => this.#pause(), restAfter);
      else if (this.key && !this.#source) this.follow(this.key);
    };
    document.addEventListener("visibilitychange", look);
    look();
  }

  /** Returns the time of the database's clock in Unix milliseconds. */
  now() {
    return Date.now() - (this.#lead === Infinity ? 0 : this.#lead);
  }

  /** Follows key instead of the key before. */
  follow(key) {
    this.key = key;
    this.#end();
    const url = "/api/events?key=" + encodeURIComponent(key);
    const source = (this.#source = new EventSource(url));
    const on = (name, f) => source.addEventListener(name, (e) => f(JSON.parse(e.data)));
    let opened = false;
    on("hello", (e) => {
      opened = true;
      this.#lead = Infinity;
      this.#seen(e);
      this.on.connected();
    });
    on("decision", (e) => this.on.decision(this.#seen(e)));
    on("levels", (e) => {
      for (const level of Object.values(e.levels)) this.#seen(level);
      this.on.levels(e);
    });
    on("jobs", (e) => this.on.jobs(e.jobs));
    on("reset", () => this.on.reset());
    on("problem", (e) => this.on.problem(e));
    source.onerror = async () => {
      source.close(); // EventSource does not retry after an answer such as 503
      const why = opened ? "" : await refusal(url);
      if (source !== this.#source) return;
      this.on.lost(why);
      this.#timer = setTimeout(() => this.follow(this.key), retryAfter);
    };
  }

  #end() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = undefined;
  }

  #pause() {
    if (!this.#source) return;
    this.#end();
    this.on.paused();
  }

  // The fastest message gives the best estimate of the difference between the clocks.
  #seen(e) {
    const lead = Date.now() - e.at;
    this.#lead = lead > this.#lead + setBack ? lead : Math.min(this.#lead, lead);
    return e;
  }
}
