"use strict";
(() => {
  const root = document.documentElement;
  addEventListener("error", (event) => { root.dataset.error = String(event.message); });

  const text = (tag, kind, words) => {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    if (words !== undefined) made.textContent = words;
    return made;
  };

  const number = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(2);
    return value.toLocaleString("en", { maximumSignificantDigits: size >= 1e4 ? 6 : 4 });
  };

  // Tables: a click on a heading sorts by that column, a second click reverses the order; missing values stay last.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = text("button", "", head.textContent);
      button.type = "button";
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down < 0 ? "descending" : "ascending");
        const numbers = head.classList.contains("number");
        const key = (row) => {
          const cell = row.cells[column];
          if (!numbers) return cell.textContent;
          return cell.dataset.key === undefined ? null : Number(cell.dataset.key);
        };
        const order = (a, b) => {
          if (a === null || b === null) return (a === null) - (b === null);
          return numbers ? (a - b) * down : a.localeCompare(b, "en", { numeric: true }) * -down;
        };
        const rows = [...body.rows].map((row) => [key(row), row]);
        rows.sort((a, b) => order(a[0], b[0]));
        body.append(...rows.map((pair) => pair[1]));
      });
    });
  }

  // Charts: a click on a name hides or shows the curve; hovering shows the values.
  const nearest = (xs, x) => {
    let best = -1;
    xs.forEach((value, i) => {
      if (value !== null && (best < 0 || Math.abs(value - x) < Math.abs(xs[best] - x))) best = i;
    });
    return best;
  };
  for (const figure of document.querySelectorAll("figure.chart")) {
    const canvas = figure.querySelector(".canvas[data-chart]");
    if (!canvas) continue;
    const chart = JSON.parse(canvas.dataset.chart);
    const hidden = new Set();
    for (const button of figure.querySelectorAll(".legend button")) {
      button.addEventListener("click", () => {
        const line = Number(button.dataset.line);
        const gone = !hidden.delete(line) && Boolean(hidden.add(line));
        button.setAttribute("aria-pressed", String(!gone));
        for (const path of canvas.querySelectorAll(`[data-line="${line}"]`)) path.classList.toggle("gone", gone);
      });
    }
    const cross = text("div", "cross");
    const tip = text("div", "tip");
    cross.hidden = tip.hidden = true;
    canvas.append(cross, tip);
    const leave = () => { cross.hidden = tip.hidden = true; };
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const [low, high] = chart.x;
      const wanted = low + ((event.clientX - box.left) / box.width) * (high - low);
      const found = [];
      chart.s.forEach((line, i) => {
        const at = hidden.has(i) ? -1 : nearest(line.x, wanted);
        if (at >= 0 && line.y[at] !== null) found.push([line, at]);
      });
      if (!found.length) { leave(); return; }
      const x = found.reduce((best, [line, at]) =>
        (Math.abs(line.x[at] - wanted) < Math.abs(best - wanted) ? line.x[at] : best), Infinity);
      const near = found.filter(([line, at]) => Math.abs(line.x[at] - x) <= (high - low) * 0.02);
      near.sort((a, b) => b[0].y[b[1]] - a[0].y[a[1]]);
      const rows = near.slice(0, 14).map(([line, at]) => {
        const row = text("div", "row");
        row.append(text("span", `swatch ${line.k}`), text("span", "", line.n), text("b", "", number(line.y[at])));
        if (line.l) row.append(text("small", "", `${number(line.l[at])} to ${number(line.h[at])}`));
        return row;
      });
      if (near.length > 14) rows.push(text("div", "", `and ${near.length - 14} more`));
      tip.replaceChildren(text("div", "at", number(x)), ...rows);
      const left = ((x - low) / (high - low || 1)) * 100;
      cross.style.left = tip.style.left = `${left}%`;
      tip.classList.toggle("left", left > 50);
      cross.hidden = tip.hidden = false;
    });
  }

  // Frames: play, pause, slider.
  for (const player of document.querySelectorAll(".player")) {
    const images = [...player.querySelectorAll("img")];
    const controls = player.querySelector(".controls");
    const [button, slider, output] = controls.children;
    let clock = 0;
    const show = (at) => {
      images.forEach((image, i) => { image.hidden = i !== at; });
      slider.value = String(at);
      output.textContent = images[at].dataset.label;
    };
    const stop = () => {
      clearInterval(clock);
      clock = 0;
      button.textContent = "Play";
    };
    button.addEventListener("click", () => {
      if (clock) { stop(); return; }
      button.textContent = "Pause";
      if (Number(slider.value) === images.length - 1) show(0);
      clock = setInterval(() => {
        const next = Number(slider.value) + 1;
        show(next);
        if (next === images.length - 1) stop();
      }, 1000 / Number(player.dataset.rate));
    });
    slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
    controls.hidden = images.length < 2;
  }

  root.dataset.ready = "yes";
})();
