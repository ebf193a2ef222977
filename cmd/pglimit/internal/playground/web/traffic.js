// A slider that sends requests repeatedly.

const mostInFlight = 4; // protects a slow server

/** Calls f as many times per second as the slider's value. 0 stops. */
export function keepSending(slider, f) {
  let timer;
  let inFlight = 0;
  const shown = slider.parentElement.querySelector("output");
  const send = async () => {
    if (inFlight >= mostInFlight) return;
    inFlight++;
    try {
      await f();
    } finally {
      inFlight--;
    }
  };
  slider.addEventListener("input", () => {
    shown.value = slider.value;
    clearInterval(timer);
    if (slider.valueAsNumber > 0) timer = setInterval(send, 1000 / slider.valueAsNumber);
  });
}
