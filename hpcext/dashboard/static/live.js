"use strict";
// Loads the page again every two seconds and changes in it what is different: what a page looks
// like is said once, by the server. Focus, open parts and the place on the page stay.
(() => {
  const EVERY_MS = 2000;
  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  let paused = false;

  function like(now, next) {
    if (now.nodeName !== next.nodeName) {
      now.replaceWith(document.importNode(next, true));
      return;
    }
    if (now.nodeType !== Node.ELEMENT_NODE) {
      if (now.data !== next.data) now.data = next.data;
      return;
    }
    for (const { name } of [...now.attributes]) {
      // Whether a part is open is the reader's.
      if (name !== "open" && !next.hasAttribute(name)) now.removeAttribute(name);
    }
    for (const { name, value } of next.attributes) {
      if (now.getAttribute(name) !== value) now.setAttribute(name, value);
    }
    const before = [...now.childNodes], after = [...next.childNodes];
    before.slice(after.length).forEach((node) => node.remove());
    after.forEach((node, index) => {
      if (before[index]) like(before[index], node);
      else now.append(document.importNode(node, true));
    });
  }

  async function look() {
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (!answer.ok) throw new Error(`the dashboard says ${answer.status}`);
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (paused) return;
      document.title = next.title;
      like(document.querySelector("main"), next.querySelector("main"));
      live.textContent = `Live; read at ${next.getElementById("read").textContent}`;
      live.className = "on";
    } catch (error) {
      live.textContent = `Not live (${error.message}); this is what it was. Still trying.`;
      live.className = "trouble";
    }
  }

  async function turn() {
    if (!paused && !document.hidden) await look();
    setTimeout(turn, EVERY_MS);
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    if (paused) live.textContent += "; paused";
  });
  setTimeout(turn, EVERY_MS);
})();
