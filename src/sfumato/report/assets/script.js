"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const charts = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const off = new Set();
  root.classList.add("js");

  // Light or dark: as the reader's system has it, until the button is used.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const paint = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    theme.setAttribute("aria-pressed", String(dark));
    theme.textContent = dark ? "☀ light" : "☾ dark";
    theme.setAttribute("aria-label", dark ? "Use the light theme" : "Use the dark theme");
  };
  let chosen = false;
  paint(system.matches);
  system.addEventListener("change", (event) => { if (!chosen) paint(event.matches); });
  theme.addEventListener("click", () => { chosen = true; paint(root.dataset.theme !== "dark"); });

  // Steps or epsilon.
  const showAxis = (axis) => {
    for (const figure of all("#curves figure")) {
      const boxes = all("[data-x]", figure);
      const found = boxes.some((box) => box.dataset.x === axis);
      for (const box of boxes) box.hidden = found && box.dataset.x !== axis;
    }
    for (const b of all("[data-axis]")) b.setAttribute("aria-pressed", String(b.dataset.axis === axis));
  };
  showAxis("step");
  for (const b of all("[data-axis]")) b.addEventListener("click", () => showAxis(b.dataset.axis));

  // Runs on and off.
  for (const b of all("[data-toggle]")) {
    b.addEventListener("click", () => {
      const run = Number(b.dataset.toggle);
      const hide = !off.has(run);
      if (hide) off.add(run); else off.delete(run);
      b.setAttribute("aria-pressed", String(!hide));
      for (const g of all(`svg [data-run="${run}"]`)) g.classList.toggle("off", hide);
      for (const g of all(`svg [data-run="${run}"]`)) g.style.display = hide ? "none" : "";
    });
  }

  // One run at a time.
  const tabs = all("[role=tab]");
  const select = (index, focus) => {
    tabs.forEach((tab, k) => {
      tab.setAttribute("aria-selected", String(k === index));
      tab.tabIndex = k === index ? 0 : -1;
      const panel = document.getElementById(tab.getAttribute("aria-controls"));
      panel.setAttribute("role", "tabpanel");
      panel.hidden = k !== index;
    });
    if (focus) tabs[index].focus();
  };
  if (tabs.length) select(0, false);
  tabs.forEach((tab, k) => {
    tab.addEventListener("click", () => select(k, false));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      select((to + tabs.length) % tabs.length, true);
    });
  });

  // Tables sorted by a column.
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const plain = text.replace(/[\s\u202f%]/g, "").replace("∞", "Infinity");
    return plain !== "" && !Number.isNaN(Number(plain)) ? Number(plain) : text;
  };
  const before = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a === b ? 0 : a < b ? -1 : 1;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a.localeCompare(b, undefined, { numeric: true });
  };
  for (const table of all("table.sortable")) {
    all("thead th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows];
        rows.sort((a, b) => (down ? -1 : 1) * before(value(a, column), value(b, column)));
        body.append(...rows);
      });
    });
  }

  // Values under the pointer, or under a cursor that the arrow keys move.
  const place = (scale, v) => {
    const f = scale[4] ? Math.log : (x) => x;
    return scale[2] + ((f(v) - f(scale[0])) / (f(scale[1]) - f(scale[0]))) * (scale[3] - scale[2]);
  };
  const short = (v) => (Math.abs(v) >= 100 ? v.toFixed(0) : String(Number(v.toPrecision(4))));
  const share = (v) => `${(100 * v).toFixed(1)} %`;
  const shape = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, v] of Object.entries(attributes)) made.setAttribute(key, v);
    return made;
  };
  const say = (svg, marks, at, title, lines) => {
    svg.querySelector(".readout").replaceChildren(...marks);
    const heading = document.createElement("b");
    heading.textContent = title;
    tip.replaceChildren(heading);
    for (const text of lines) {
      const line = document.createElement("div");
      line.textContent = text;
      tip.append(line);
    }
    tip.hidden = false;
    const box = svg.getBoundingClientRect();
    const unit = box.width / svg.viewBox.baseVal.width;
    const x = box.left + at[0] * unit, y = box.top + at[1] * unit;
    const left = x + 14 + tip.offsetWidth > innerWidth ? x - tip.offsetWidth - 14 : x + 14;
    const top = Math.min(Math.max(4, y - tip.offsetHeight / 2), innerHeight - tip.offsetHeight - 4);
    tip.style.transform = `translate(${Math.max(4, left)}px, ${top}px)`;
  };
  const clear = (svg) => { svg.querySelector(".readout").replaceChildren(); tip.hidden = true; };

  // Each kind of chart: its stops for the keyboard, the stop nearest a point, and what it says.
  const kinds = {
    lines: (svg, c) => {
      const shown = () => c.series.filter((s) => !off.has(s.run));
      const stops = () => [...new Set(shown().flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
      const closest = (list, x) => list.reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a));
      return {
        count: () => stops().length,
        move: { ArrowRight: 1, ArrowLeft: -1 },
        near: (x) => {
          const list = stops();
          const at = list.map((v) => place(c.x, v));
          return at.length ? at.indexOf(closest(at, x)) : -1;
        },
        show: (k) => {
          const x = stops()[k], at = place(c.x, x);
          const marks = [shape("line", { x1: at, x2: at, y1: c.y[2], y2: c.y[3] })];
          const lines = [];
          for (const s of shown()) {
            const near = closest(s.points.map((p) => p[0]), x);
            if (s.points.length > 1 ? Math.abs(place(c.x, near) - at) > 12 : near !== x) continue;
            const y = s.points.find((p) => p[0] === near)[1];
            marks.push(shape("circle", { cx: place(c.x, near), cy: place(c.y, y), r: 3.5 }));
            lines.push(`${s.name}: ${c.percent ? share(y) : short(y)}`);
          }
          say(svg, marks, [at, (c.y[2] + c.y[3]) / 2], `${c.xName} ${short(x)}`, lines);
        },
      };
    },
    stops: (svg, c) => {
      const shown = () => c.stops.filter((s) => !off.has(s.run));
      return {
        count: () => shown().length,
        move: { ArrowRight: 1, ArrowLeft: -1 },
        near: (x, y) => {
          let best = -1, least = 60;
          shown().forEach((s, k) => {
            const d = Math.hypot(s.at[0] - x, c.across ? 0 : s.at[1] - y);
            if (d < least) { best = k; least = d; }
          });
          return best;
        },
        show: (k) => {
          const s = shown()[k], [x, y] = s.at;
          const mark = c.across
            ? shape("line", { x1: x, x2: x, y1: c.across[0], y2: c.across[1] })
            : shape("circle", { cx: x, cy: y, r: 10, "fill-opacity": 0 });
          say(svg, [mark], [x + 8, y], s.title, s.lines);
        },
      };
    },
    matrix: (svg, c) => {
      const n = c.classes.length;
      return {
        count: () => n * n,
        move: { ArrowRight: 1, ArrowLeft: -1, ArrowDown: n, ArrowUp: -n },
        near: (x, y) => {
          const j = Math.floor((x - c.left) / c.cell), i = Math.floor((y - c.top) / c.cell);
          return i >= 0 && j >= 0 && i < n && j < n ? i * n + j : -1;
        },
        show: (k) => {
          const i = Math.floor(k / n), j = k % n, of = c.counts[i].reduce((a, b) => a + b, 0);
          const x = c.left + j * c.cell, y = c.top + i * c.cell;
          say(svg, [shape("rect", { x, y, width: c.cell, height: c.cell })], [x + c.cell, y + c.cell / 2],
            `${c.counts[i][j]} of ${of}`,
            [`true: ${c.classes[i]}`, `predicted: ${c.classes[j]}`, of ? share(c.counts[i][j] / of) : "no images"]);
        },
      };
    },
  };
  for (const svg of all("svg[data-chart]")) {
    const c = charts[svg.dataset.chart];
    if (!c) continue;
    const chart = kinds[c.kind](svg, c);
    let now = -1;
    const go = (k) => {
      now = k;
      if (k < 0) clear(svg); else chart.show(k);
    };
    const point = (event) => {
      const box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
      go(chart.near((event.clientX - box.left) * unit, (event.clientY - box.top) * unit));
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", () => go(-1));
    svg.addEventListener("blur", () => go(-1));
    svg.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { go(-1); return; }
      const by = chart.move[event.key];
      if (by === undefined || !chart.count()) return;
      event.preventDefault();
      const last = chart.count() - 1;
      go(now < 0 ? 0 : now + by < 0 || now + by > last ? now : now + by);
    });
  }
  // On paper nothing unfolds, so the recipe is laid open.
  const folded = all("details.print");
  addEventListener("beforeprint", () => { for (const d of folded) { d.dataset.was = d.open ? "1" : ""; d.open = true; } });
  addEventListener("afterprint", () => { for (const d of folded) d.open = d.dataset.was === "1"; });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
})();
