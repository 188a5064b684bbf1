// Search runs in a web worker, which browsers do not start from local files. This polyfill uses a hidden iframe instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true, srcdoc: "" });
      this.inner = new Promise((ready) => {
        this.frame.onload = () => {
          const inner = this.frame.contentWindow;
          inner.postMessage = (data) => this.onmessage?.({ data });
          const script = inner.document.createElement("script");
          script.src = url;
          script.onload = () => ready(inner);
          inner.document.body.append(script);
        };
      });
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.inner.then((inner) => inner.onmessage({ data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
