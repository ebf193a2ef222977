// A slider that keeps sending.

const mostInFlight = 4; // a slow server is not buried

/** Sends by f, as often per second as the slider says, until it says 0. */
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
