// Updates a page: requests its live part once a second and replaces only what changed, so that
// focus, selection and scroll stay where they are. The server made and escaped all of it; this
// script adds only short notices, as text.
"use strict";

(() => {
  const EVERY_MS = 1000;
  const TIMEOUT_MS = 8000;
  const STALE_MS = 3000;
  const live = document.getElementById("live");
  const health = document.getElementById("health");
  const stale = document.getElementById("stale");
  const pause = document.getElementById("pause");
  let paused = false;
  let heardAt = Date.now();

  // -- replacing -------------------------------------------------------------------------------

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);

  function same(old, fresh) {
    return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
  }

  function morph(old, fresh) {
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE || old.hasAttribute("data-keep")) return;
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    }
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    morphChildren(old, fresh);
  }

  function morphChildren(old, fresh) {
    const keyed = new Map();
    for (const child of old.children) {
      const key = keyOf(child);
      if (key !== null) keyed.set(key, child);
    }
    let at = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const key = keyOf(wanted);
      const found = key !== null ? keyed.get(key) : at && keyOf(at) === null ? at : null;
      if (found && same(found, wanted)) {
        if (found === at) at = at.nextSibling;
        else old.insertBefore(found, at);
        morph(found, wanted);
      } else {
        old.insertBefore(document.importNode(wanted, true), at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function put(place, html) {
    morphChildren(place, new DOMParser().parseFromString(`<body>${html}</body>`, "text/html").body);
  }

  // -- requests---------------------------------------------------------------------------------

  async function ask() {
    const address = new URL(location.href);
    address.searchParams.set("live", "1");
    const options = { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(TIMEOUT_MS) };
    const answer = await fetch(address, options);
    if (answer.redirected) {
      location.reload(); // the login ended
      return;
    }
    const told = await answer.json();
    if (told.live === undefined) throw new Error(told.error ? `${told.error.message} (${told.error.name})` : answer.statusText);
    put(live, told.live);
    put(health, told.health);
    heardAt = Date.now();
    document.dispatchEvent(new Event("myq:live"));
  }

  function tell(text) {
    document.body.classList.toggle("stale", Boolean(text));
    stale.hidden = !text;
    if (stale.textContent !== text) stale.textContent = text;
  }

  async function turn() {
    const began = Date.now();
    if (!paused && !document.hidden) {
      try {
        await ask();
        tell("");
      } catch (error) {
        const time = new Date(heardAt).toISOString().slice(11, 19);
        const why = error.name === "TypeError" || error.name === "TimeoutError" ? "The gateway does not answer" : error.message;
        if (Date.now() - heardAt > STALE_MS) tell(`${why}; what is shown is of ${time} UTC.`);
      }
    }
    setTimeout(turn, Math.max(200, EVERY_MS - (Date.now() - began)));
  }

  function setPaused(on) {
    paused = on;
    pause.setAttribute("aria-pressed", String(on));
    pause.textContent = on ? "Resume" : "Pause";
  }

  // -- forms ------------------------------------------------------------------------------------

  // Sends a form without leaving the page; the answer is shown next to the button.
  async function sendQuietly(form) {
    const button = form.querySelector("button");
    const out = form.querySelector("output");
    button.disabled = true;
    out.textContent = "Sending …";
    try {
      const options = { method: "POST", body: new URLSearchParams(new FormData(form)), headers: { Accept: "application/json" } };
      const answer = await fetch(form.action, options);
      const told = await answer.json();
      if (!told.error && !answer.ok) throw new Error(told.message || answer.statusText);
      out.textContent = told.error
        ? `Not sent: ${told.error.message} (${told.error.name} ${told.error.code})`
        : `Stored in partition ${told.partition} at offset ${told.offset.toLocaleString("en")}.`;
    } catch (error) {
      out.textContent = `Not known whether it was sent: ${error.message}`;
    }
    button.disabled = false;
  }

  for (const form of document.querySelectorAll("form[data-quiet]")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      sendQuietly(form);
    });
  }

  // Shows only the field that the choice needs: offset, time or count.
  const from = document.getElementById("from");
  if (from) {
    const choose = () => {
      for (const field of document.querySelectorAll("[data-for]")) field.hidden = !field.dataset.for.split(" ").includes(from.value);
    };
    from.addEventListener("change", choose);
    choose();
  }

  if (live && live.childElementCount) {
    pause.hidden = false;
    pause.addEventListener("click", () => setPaused(!paused));
    setTimeout(turn, EVERY_MS);
  }
})();
