// Search of a page that is opened from disk: browsers start no worker from a file, so its script runs in a frame.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    this.scope = frame.contentWindow;
    this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
    const script = frame.contentDocument.createElement("script");
    this.loaded = new Promise(resolve => { script.onload = resolve; });
    script.src = url;
    frame.contentDocument.body.append(script);
  }
  postMessage(data) {
    this.loaded.then(() => this.scope.dispatchEvent(new MessageEvent("message", {data})));
  }
}
if (location.protocol === "file:") window.Worker = FrameWorker;
