// Browsers refuse workers of pages that are files: the search's runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentDocument;
      inside.open();
      inside.close(); // Firefox would replace a document that nobody has opened
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.createElement("script");
      this.loaded = new Promise((resolve) => (script.onload = resolve));
      script.src = url;
      (inside.body || inside.documentElement).append(script);
    }

    postMessage(data) {
      this.loaded.then(() =>
        this.scope.dispatchEvent(new MessageEvent("message", { data }))
      );
    }
  };
}
