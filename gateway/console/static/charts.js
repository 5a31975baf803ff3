// Draws the charts of the overview: lines over the last 15 minutes, or as much of them as is
// known. A second without a measurement is a gap in the line. The server names the unit.
"use strict";

(() => {
  const section = document.querySelector("[data-series]");
  if (!section) return;
  const KEPT_MS = 15 * 60 * 1000;
  const SPAN_MS_MIN = 60 * 1000;
  const GAP_MS = 5000;
  const SPACE = { left: 4, right: 4, top: 14, bottom: 18 };
  const data = { at_ms: [] };
  let nowMs = 0;
  let asking = false;

  // -- numbers ----------------------------------------------------------------------------------

  const short = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toFixed(1))));

  function scaled(value, step, units) {
    let at = 0;
    while (value >= step && at < units.length - 1) {
      value /= step;
      at += 1;
    }
    return `${short(value)} ${units[at]}`.trim();
  }

  const WRITE = {
    rate: (value) => `${scaled(value, 1000, ["", "k", "M", "G"])}/s`,
    bytes: (value) => `${scaled(value, 1024, ["B", "KiB", "MiB", "GiB"])}/s`,
    ms: (value) => `${short(value)} ms`,
  };

  // The next round number above: 1, 2 or 5 times a power of ten; of two for bytes.
  function ceiling(value, unit) {
    if (unit === "bytes") return Math.max(1024, 2 ** Math.ceil(Math.log2(Math.max(value, 1))));
    const floor = Math.max(value, unit === "ms" ? 1 : 10);
    const power = 10 ** Math.floor(Math.log10(floor));
    return [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= floor);
  }

  // -- drawing ----------------------------------------------------------------------------------

  function make(parent, name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  function segments(name, x, y) {
    const out = [];
    let current = null;
    let before = 0;
    data.at_ms.forEach((at, index) => {
      const value = data[name][index];
      if (value === null) {
        current = null;
        return;
      }
      if (!current || at - before > GAP_MS) out.push((current = []));
      current.push([x(at).toFixed(1), y(value).toFixed(1)]);
      before = at;
    });
    return out;
  }

  const path = (points) => "M" + points.map((point) => point.join(" ")).join("L");

  function axis(svg, size, top, write, span) {
    for (const share of [0, 0.5, 1]) {
      const y = size.height - SPACE.bottom - share * (size.height - SPACE.top - SPACE.bottom);
      make(svg, "line", { class: "grid", x1: SPACE.left, x2: size.width - SPACE.right, y1: y, y2: y });
      if (share) make(svg, "text", { x: SPACE.left, y: y - 3 }, write(top * share));
    }
    const name = span >= 2 * 60000 ? `${Math.round(span / 60000)} min ago` : `${Math.round(span / 1000)} s ago`;
    make(svg, "text", { x: SPACE.left, y: size.height - 4 }, name);
    make(svg, "text", { x: size.width - SPACE.right, y: size.height - 4, "text-anchor": "end" }, "now");
  }

  function draw(figure) {
    const plot = figure.querySelector(".plot");
    const size = { width: Math.max(120, plot.clientWidth), height: Math.max(80, plot.clientHeight) };
    const write = WRITE[figure.dataset.unit];
    const lines = [...figure.querySelectorAll("[data-line]")];
    const known = lines.flatMap((line) => data[line.dataset.line] || []).filter((value) => value !== null);
    const top = ceiling(Math.max(0, ...known), figure.dataset.unit);
    const span = Math.min(KEPT_MS, Math.max(SPAN_MS_MIN, nowMs - (data.at_ms[0] || nowMs)));
    const x = (at) => SPACE.left + (1 - (nowMs - at) / span) * (size.width - SPACE.left - SPACE.right);
    const y = (value) => size.height - SPACE.bottom - (value / top) * (size.height - SPACE.top - SPACE.bottom);
    const svg = make(document.createDocumentFragment(), "svg", {
      viewBox: `0 0 ${size.width} ${size.height}`, role: "img",
      "aria-label": `${figure.querySelector("h2").textContent}, up to ${write(top)}`,
    });
    axis(svg, size, top, write, span);
    for (const line of lines) {
      for (const points of segments(line.dataset.line, x, y)) {
        if (line.dataset.place === "1" && points.length > 1) {
          const base = size.height - SPACE.bottom;
          make(svg, "path", { class: "area", d: `${path(points)}L${points.at(-1)[0]} ${base}L${points[0][0]} ${base}Z` });
        }
        make(svg, "path", { class: `line${line.dataset.place}`, d: path(points) });
      }
    }
    cursor(figure, svg, lines, { x, span, size, write });
    plot.replaceChildren(svg);
  }

  // The values next to the names: the newest, or those under the pointer.
  function cursor(figure, svg, lines, scale) {
    const pointed = figure.pointed;
    let index = data.at_ms.length - 1;
    if (pointed !== undefined && index >= 0) {
      const wanted = nowMs - (1 - pointed) * scale.span;
      index = data.at_ms.reduce((best, at, one) => (Math.abs(at - wanted) < Math.abs(data.at_ms[best] - wanted) ? one : best), 0);
      const at = scale.x(data.at_ms[index]);
      make(svg, "line", { class: "cursor", x1: at, x2: at, y1: SPACE.top, y2: scale.size.height - SPACE.bottom });
      const time = new Date(data.at_ms[index]).toISOString().slice(11, 19);
      make(svg, "text", { x: Math.min(Math.max(at, 24), scale.size.width - 24), y: scale.size.height - 4, "text-anchor": "middle" }, time);
    }
    for (const line of lines) {
      const value = index < 0 ? null : data[line.dataset.line][index];
      line.querySelector("b").textContent = value === null || value === undefined ? "–" : scale.write(value);
    }
  }

  // -- requests---------------------------------------------------------------------------------

  function take(told) {
    nowMs = told.now_ms;
    for (const [name, values] of Object.entries(told)) {
      if (Array.isArray(values)) data[name] = (data[name] || []).concat(values);
    }
    const old = data.at_ms.findIndex((at) => at > nowMs - KEPT_MS);
    if (old > 0) for (const name of Object.keys(data)) data[name].splice(0, old);
  }

  async function ask() {
    if (asking) return;
    asking = true;
    try {
      const answer = await fetch(`${section.dataset.series}?since=${data.at_ms.at(-1) || 0}`, { headers: { Accept: "application/json" } });
      if (answer.ok) take(await answer.json());
      redraw();
    } catch {
      // console.js reports that the gateway does not answer
    } finally {
      asking = false;
    }
  }

  const redraw = () => section.querySelectorAll("[data-chart]").forEach(draw);

  for (const figure of section.querySelectorAll("[data-chart]")) {
    const plot = figure.querySelector(".plot");
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      figure.pointed = (event.clientX - box.left - SPACE.left) / (box.width - SPACE.left - SPACE.right);
      draw(figure);
    });
    plot.addEventListener("pointerleave", () => {
      figure.pointed = undefined;
      draw(figure);
    });
  }
  document.addEventListener("myq:live", ask);
  addEventListener("resize", redraw);
  ask();
})();
