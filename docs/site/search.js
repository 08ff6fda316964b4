// A search for a name, such as --split-by-time or ringfeed.pipeline, asks for pages with all of its parts. As it is, a
// dash in front of a word would mean pages without it, two are an error, and parts are looked for one by one.
const send = Worker.prototype.postMessage;
const QUERY = 2;

function asked(text) {
  return text.replace(/(^|\s)-*(\w+(?:[-.]\w+)*)(?=\s|$)/g, (_, before, name) => {
    const parts = name.split(/[-.]/).filter((part) => part.length > 2);
    return before + (/[-.]/.test(name) ? parts.map((part) => `+${part}`).join(" ") : name);
  });
}

Worker.prototype.postMessage = function (message, ...rest) {
  const isQuery = message && message.type === QUERY && typeof message.data === "string";
  return send.call(this, isQuery ? { ...message, data: asked(message.data) } : message, ...rest);
};
