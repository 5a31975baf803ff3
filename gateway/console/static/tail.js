// The live tail: requests new messages again and again, and puts them on top. Every message is put
// on the page as text, whatever is in it. Pausing keeps the rows; messages that arrive in the
// meantime are fetched afterwards.
"use strict";

(() => {
  const tail = document.getElementById("tail");
  const body = tail.querySelector("tbody");
  const pause = document.getElementById("tail-pause");
  const state = document.getElementById("tail-state");
  const skipped = document.getElementById("tail-skipped");
  const heads = [...tail.querySelectorAll("thead th")];
  const ROWS_MAX = 500;
  const PAUSE_MS = 400; // between two requests, when the gateway could not wait
  const AFTER_ERROR_MS = 2000;
  const TIMEOUT_MS = 15000;
  let at = tail.dataset.at;
  let paused = false;
  let count = 0;
  let left = 0;

  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

  function cell(head, text, href) {
    const made = document.createElement("td");
    made.title = head.title;
    made.dataset.head = head.textContent;
    if (head.classList.contains("number")) made.className = "number";
    if (href) {
      const link = document.createElement("a");
      link.href = href;
      link.textContent = text;
      made.append(link);
    } else {
      made.textContent = text;
    }
    return made;
  }

  function row(message) {
    const made = document.createElement("tr");
    const texts = [message.partition, message.offset, message.time, message.key ?? "", message.value, message.size];
    texts.forEach((text, index) => made.append(cell(heads[index], text, index === 1 ? message.link : "")));
    made.children[3].classList.add("code");
    made.children[4].classList.add("code");
    return made;
  }

  function show(told) {
    at = told.at;
    count += told.rows.length;
    left += told.skipped;
    body.prepend(...told.rows.map(row).reverse());
    while (body.rows.length > ROWS_MAX) body.lastElementChild.remove();
    if (left) skipped.textContent = `${left.toLocaleString("en")} skipped: more came than can be shown`;
    say(told.error || (count ? `${count.toLocaleString("en")} shown so far` : "Waiting for messages …"));
  }

  function say(text) {
    if (state.textContent !== text) state.textContent = text;
  }

  async function ask() {
    const address = `${tail.dataset.more}?at=${encodeURIComponent(at)}`;
    const answer = await fetch(address, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(TIMEOUT_MS) });
    const told = await answer.json();
    if (!told.rows) throw new Error(told.error ? `${told.error.message} (${told.error.name})` : answer.statusText);
    return told;
  }

  async function run() {
    for (;;) {
      if (paused || document.hidden) {
        await sleep(PAUSE_MS);
        continue;
      }
      try {
        const told = await ask();
        show(told);
        if (!told.waited && !told.rows.length) await sleep(PAUSE_MS);
      } catch (error) {
        say(`No news: ${error.message}`);
        await sleep(AFTER_ERROR_MS);
      }
    }
  }

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Resume" : "Pause";
  });
  document.getElementById("tail-clear").addEventListener("click", () => {
    body.replaceChildren();
    count = left = 0;
    skipped.textContent = "";
  });
  run();
})();
