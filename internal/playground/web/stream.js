// The decisions of one key as they happen, and the clock they happen by.

import { refusal } from "./api.js";

const retryAfter = 1000;
// ms after which a hidden tab listens no more. A browser opens six connections to a
// host: six streams would leave none for all that is asked.
const restAfter = 5000;
const setBack = 5000; // ms by which no message is late, so that a clock must have been set

export class Stream {
  #source;
  #timer;
  #rest;
  #lead = Infinity; // how far this machine's clock is ahead of the database's, as far as seen

  /** on has decision(d), levels(l), reset(), problem(p), connected(), paused() and lost(why), "" if that is not known. */
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

  /** The database's clock as of now, in Unix milliseconds. */
  now() {
    return Date.now() - (this.#lead === Infinity ? 0 : this.#lead);
  }

  /** Follows key from now on, and no other. */
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
    on("reset", () => this.on.reset());
    on("problem", (e) => this.on.problem(e));
    source.onerror = async () => {
      source.close(); // it would not try again after an answer such as 503
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

  // What came quickest tells most of the clocks.
  #seen(e) {
    const lead = Date.now() - e.at;
    this.#lead = lead > this.#lead + setBack ? lead : Math.min(this.#lead, lead);
    return e;
  }
}
