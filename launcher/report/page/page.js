"use strict";
(() => {
  const root = document.documentElement;
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
  });
  const shown = (value) => value === null ? "\u2013" : Number(value.toPrecision(5)).toLocaleString("en", { maximumSignificantDigits: 5 });
  for (const figure of document.querySelectorAll("figure.chart")) {
    const series = JSON.parse(figure.querySelector("script.points").textContent);
    const svg = figure.querySelector("svg");
    const cursor = svg.querySelector(".cursor");
    const tip = figure.querySelector(".tip");
    const [first, last, left, right] = svg.dataset.x.split(" ").map(Number);
    const steps = [...new Set(series.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
    const near = (step, points) => points.reduce((best, point) =>
      Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      const wanted = first + (x - left) / (right - left) * (last - first);
      const step = near(wanted, steps.map((value) => [value]))[0];
      const place = left + (step - first) / (last - first) * (right - left);
      cursor.setAttribute("x1", place);
      cursor.setAttribute("x2", place);
      cursor.setAttribute("visibility", "visible");
      const rows = [document.createElement("b")];
      rows[0].textContent = step.toLocaleString("en");
      for (const line of series) {
        const point = near(step, line.points);
        if (Math.abs(point[0] - step) > (last - first) / 50) continue;
        const row = document.createElement("div");
        const key = document.createElement("i");
        key.className = "key c" + line.color;
        row.append(key, line.name + " " + shown(point[1]) + (point[0] === step ? "" : " (" + point[0] + ")"));
        rows.push(row);
      }
      tip.replaceChildren(...rows);
      tip.hidden = false;
      const at = place / svg.viewBox.baseVal.width * box.width;
      tip.style.left = at + tip.offsetWidth + 24 < box.width ? at + 12 + "px" : at - tip.offsetWidth - 12 + "px";
    });
    svg.addEventListener("pointerleave", () => {
      cursor.setAttribute("visibility", "hidden");
      tip.hidden = true;
    });
  }
})();
