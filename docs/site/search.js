// Browsers start no worker for a page on a disk: the worker's script then runs in a hidden frame.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.scope = new Promise((start) => {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const scope = frame.contentWindow;
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = scope.document.createElement("script");
      script.src = url;
      script.onload = () => start(scope);
      scope.document.body.append(script);
    });
  }

  postMessage(data) {
    this.scope.then((scope) => scope.dispatchEvent(new scope.MessageEvent("message", { data })));
  }
}

if (globalThis.location?.protocol === "file:") globalThis.Worker = FrameWorker;

// A search for a name, such as --split-by-time or ringfeed.pipeline, asks for pages with all of its parts. As it is, a
// dash in front of a word would mean pages without it, two are an error, and parts are looked for one by one. A search
// for a message, of five words or more, asks for pages with its three longest words.
const send = Worker.prototype.postMessage;
const QUERY = 2;

function asked(text) {
  const words = text.match(/[A-Za-z]{4,}/g) || [];
  if (text.trim().split(/\s+/).length > 4 && words.length > 2) {
    return words.sort((one, other) => other.length - one.length).slice(0, 3).map((word) => `+${word}`).join(" ");
  }
  return text.replace(/(^|\s)-*(\w+(?:[-.]\w+)*)(?=\s|$)/g, (_, before, name) => {
    const parts = name.split(/[-.]/).filter((part) => part.length > 2);
    return before + (/[-.]/.test(name) ? parts.map((part) => `+${part}`).join(" ") : name);
  });
}

Worker.prototype.postMessage = function (message, ...rest) {
  const isQuery = message && message.type === QUERY && typeof message.data === "string";
  return send.call(this, isQuery ? { ...message, data: asked(message.data) } : message, ...rest);
};
