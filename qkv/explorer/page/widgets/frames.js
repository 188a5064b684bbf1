// Drawing on animation frames, and the flag `data-ready` that says when the page has nothing left to load or draw.

const MAX_FRAMES = 600;
let openWork = 0;

/** Milliseconds that each of the latest draws took; for tests. */
export const frames = [];

/** Mark the page as not ready; the returned function ends this piece of work. */
export function beginWork() {
  openWork += 1;
  document.documentElement.dataset.ready = "false";
  let isOpen = true;
  return () => {
    if (!isOpen) return;
    isOpen = false;
    openWork -= 1;
    // A draw that follows from this work is scheduled in a later microtask, hence the check on the next frame.
    requestAnimationFrame(() => { if (openWork === 0) document.documentElement.dataset.ready = "true"; });
  };
}

/** Keep the page "not ready" until the promise settles. */
export function track(promise) {
  const endWork = beginWork();
  promise.then(endWork, endWork);
  return promise;
}

/** Returns a function that calls `draw` once on the next animation frame, however often it is called before. */
export function createPainter(draw) {
  let endWork = null;
  return () => {
    if (endWork) return;
    endWork = beginWork();
    requestAnimationFrame(() => {
      const start = performance.now();
      const end = endWork;
      endWork = null;
      try {
        draw();
      } finally {
        frames.push(performance.now() - start);
        if (frames.length > MAX_FRAMES) frames.shift();
        end();
      }
    });
  };
}

/** Call `listener` when the color scheme changes; returns a function that stops it. */
export function observeTheme(listener) {
  const query = matchMedia("(prefers-color-scheme: dark)");
  query.addEventListener("change", listener);
  return () => query.removeEventListener("change", listener);
}
