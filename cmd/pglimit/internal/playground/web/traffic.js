// Traffic for all cards: patterns in time with the same average rate.

const tick = 100; // ms between two looks at a crowd
const wave = 20_000; // ms from one crowd to the next
const burst = 10;

// The patterns yield how many requests to send, and the ms until the next step. rate returns
// the requests per second, and left the ms until the fixed window ends, negative if it has.
const patterns = {
  *steady(rate) {
    for (;;) yield [1, 1000 / rate()];
  },
  *bursts(rate) {
    for (;;) yield [burst, (burst * 1000) / rate()];
  },
  *crowd(rate) {
    for (let at = 0; ; at += tick) yield [random(2 * rate() * Math.sin((Math.PI * at) / wave) ** 2 * (tick / 1000)), tick];
  },
  *edge(_, left) {
    for (;;) {
      yield [0, left() + 300];
      yield [1, 500]; // opens a window
      yield [0, left() - 500];
      yield [burst, left() + 300];
      yield [burst, 500];
    }
  },
};

// A number with a Poisson distribution.
function random(mean) {
  let n = 0;
  for (let p = Math.random(); p > Math.exp(-mean); p *= Math.random()) n++;
  return n;
}

/** Calls send with a number of requests in the selected pattern, at the slider's rate. */
export function setUpTraffic(select, slider, left, send) {
  let timer;
  const shown = slider.parentElement.querySelector("output");
  const step = (pattern) => {
    const [times, wait] = pattern.next().value;
    timer = setTimeout(step, Math.min(Math.max(wait, 0), 1e9), pattern);
    if (times) send(times);
  };
  select.addEventListener("input", () => {
    clearTimeout(timer);
    slider.disabled = select.value === "edge";
    if (select.value) step(patterns[select.value](() => slider.valueAsNumber, left));
  });
  slider.addEventListener("input", () => (shown.value = slider.value));
}
