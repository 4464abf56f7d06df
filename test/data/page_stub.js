// node page_stub.js PAGE [STATE [HASH ..]]: runs the script of an HTML page on a DOM that accepts every call, and prints as JSON
// the texts that it wrote, the images that it drew and the number of calls to canvases. An error of the script ends it.
// STATE: the file that `fetch` answers with, for the live page. HASH: the part of the address behind the page when it is
// opened, and those that the user gives it afterwards.
"use strict";
const fs = require("fs"), vm = require("vm");
const [page, state, hash = "", ...hashes] = process.argv.slice(2);
const scripts = [...fs.readFileSync(page, "utf8").matchAll(/<script[^>]*>([\s\S]*?)<\/script>/g)].map(found => found[1]);
const texts = [], calls = {}, byId = {}, listeners = {};

function context() {
  return new Proxy({measureText: () => ({width: 10})}, {
    get: (kept, name) => name in kept ? kept[name] : () => { calls[name] = (calls[name] || 0) + 1; },
    set: (kept, name, value) => { kept[name] = value; return true; },
  });
}
function element() {
  const pen = context();
  return {
    children: [], style: {setProperty() {}}, dataset: {}, value: "1", words: "", parentElement: null,
    set textContent(text) { this.words = text; texts.push(String(text)); },
    get textContent() { return this.words; },
    get firstChild() { return this.children[0]; },
    appendChild(child) { this.children.push(child); child.parentElement = this; return child; },
    replaceChildren() { this.children = []; },
    getBoundingClientRect: () => ({width: 600, height: 400, left: 0, top: 0}),
    getContext: () => pen,
    querySelector() { return this.inner || (this.inner = element()); },
    append() {}, setAttribute() {}, addEventListener() {},
  };
}
function byName(id) {
  if (!byId[id]) {
    byId[id] = element();
    byId[id].parentElement = element();
    if (id === "data") byId[id].words = scripts[0];
  }
  return byId[id];
}
class Image {
  constructor() { this.complete = true; this.naturalWidth = 100; this.naturalHeight = 60; }
  set src(_) { setTimeout(() => this.onload && this.onload(), 0); }
}
const fetched = async name => ({json: async () => name === "state.json" ? JSON.parse(fs.readFileSync(state, "utf8")) : {version: 0, rings: []}});
const world = {
  document: {getElementById: byName, createElement: element, documentElement: {}},
  window: {addEventListener(name, act) { (listeners[name] = listeners[name] || []).push(act); }, devicePixelRatio: 1, innerWidth: 1000, innerHeight: 800},
  getComputedStyle: () => ({getPropertyValue: () => "#888"}), matchMedia: () => ({addEventListener() {}}),
  location: {hash}, performance: {now: () => 0}, requestAnimationFrame() {}, setTimeout, Image, fetch: fetched,
};
vm.runInNewContext(scripts[scripts.length - 1], world);
for (const next of hashes) {
  world.location.hash = next;
  (listeners.hashchange || []).forEach(act => act());
}
setTimeout(() => {
  process.stdout.write(JSON.stringify({texts, images: calls.drawImage || 0, calls}));
  process.exit(0);
}, 300);
