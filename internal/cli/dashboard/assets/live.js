// The pages are whole without this script. It has ages and countdowns count, and takes over the sections of a page that
// changed. It writes no markup: the browser parses what this server sent.
"use strict";
(() => {
  const main = document.getElementById("main");
  const lost = document.getElementById("lost");
  if (!main || !lost || !window.EventSource) return;

  const units = [["y", 31536000], ["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const span = (seconds) => {
    for (let i = 0; i < units.length; i++) {
      const [name, size] = units[i];
      if (seconds < size) continue;
      let out = Math.floor(seconds / size) + name;
      if (i + 1 < units.length) {
        const rest = Math.floor((seconds % size) / units[i + 1][1]);
        if (rest > 0) out += " " + rest + units[i + 1][0];
      }
      return out;
    }
    return "0s";
  };

  // The fleet's clock, by the page that was loaded last.
  let ahead = 0;
  const setClock = (doc) => {
    const now = doc.getElementById("now");
    if (now) ahead = Date.parse(now.dateTime) - Date.now();
  };
  const count = () => {
    const now = Date.now() + ahead;
    for (const t of document.querySelectorAll("time[data-show]")) {
      const left = (Date.parse(t.dateTime) - now) / 1000;
      const words = left >= 1 ? "in " + span(left) : left > -1 ? "now" : span(-left) + " ago";
      if (t.textContent !== words) t.textContent = words;
    }
  };

  // Replace what changed, and keep what a person has open or is at.
  const take = (from, to) => {
    for (const d of to.querySelectorAll("details[id][open]")) {
      const same = from.querySelector("#" + CSS.escape(d.id));
      if (same) same.open = true;
    }
    const at = document.activeElement;
    const inside = at && to.contains(at);
    const address = inside && at.getAttribute("href");
    const scrolled = [...to.querySelectorAll(".scroll")].map((s) => s.scrollLeft);
    to.replaceWith(from);
    from.querySelectorAll(".scroll").forEach((s, i) => { s.scrollLeft = scrolled[i] || 0; });
    if (inside) {
      const same = address ? [...from.querySelectorAll("a[href]")].find((a) => a.getAttribute("href") === address)
        : from.querySelector(".scroll");
      (same || main).focus({ preventScroll: true });
    }
  };
  const adopt = (doc) => {
    const next = doc.getElementById("main");
    if (!next) return;
    setClock(doc);
    main.dataset.live = next.dataset.live;
    const known = new Set();
    for (const part of doc.querySelectorAll("[data-live][id]")) {
      if (part === next) continue;
      known.add(part.id);
      const old = document.getElementById(part.id);
      if (old && !old.contains(document.activeElement && document.activeElement.closest("form")) && !old.isEqualNode(part)) {
        take(document.importNode(part, true), old);
      }
    }
    count();
  };

  let asking = false, again = false, asked = Date.now();
  const refresh = () => {
    asked = Date.now();
    if (asking) { again = true; return; }
    asking = true;
    const x = new XMLHttpRequest();
    x.open("GET", location.href);
    x.responseType = "document";
    x.timeout = 15000;
    x.onload = () => { if (x.response) adopt(x.response); };
    x.onloadend = () => { asking = false; if (again) { again = false; refresh(); } };
    x.send();
  };

  // A stream that says nothing for 8 seconds is lost, whatever the browser thinks of it: it is opened anew, again and again.
  const silence = 8000, pause = 3000;
  let stream = null, opened = 0, heard = 0, lostAt = 0;
  const alive = () => {
    heard = Date.now();
    if (lostAt) { lostAt = 0; lost.textContent = ""; }
  };
  const close = () => { if (stream) { stream.close(); stream = null; } };
  const open = () => {
    close();
    opened = Date.now();
    stream = new EventSource(main.dataset.events);
    stream.addEventListener("version", (e) => { alive(); if (e.data !== main.dataset.live) refresh(); });
    stream.addEventListener("alive", () => { alive(); if (Date.now() - asked > 5000) refresh(); });
    stream.onerror = () => { heard = 0; watch(); };
  };
  const watch = () => {
    const now = Date.now();
    if (!stream || now - heard < silence) return;
    if (!lostAt) {
      lostAt = now;
      lost.textContent = "✖ The live stream is lost, and this page is as it was at " + new Date(now).toTimeString().slice(0, 8) +
        ". It goes on by itself if fealty dashboard still runs.";
    }
    if (now - opened > pause) open();
  };

  // A page that nobody sees needs no stream: a browser has few connections to one server.
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else begin(); });
  const begin = () => { heard = Date.now(); open(); };
  setClock(document);
  count();
  setInterval(() => { count(); watch(); }, 1000);
  if (!document.hidden) begin();
})();
