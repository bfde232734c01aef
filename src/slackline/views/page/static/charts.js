// Lines over time, drawn by uPlot; colours are those of the page's style.

import { milliseconds, percent, rate } from "./text.js";

/* global uPlot */

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const LINES = ["--accent", "--exposed", "--compute", "--weights"];
const charts = new Set();

// A chart in `place`, with the same x axis as the other charts of `group`.
export class Chart {
  constructor(place, { title, format, group, from = null }) {
    Object.assign(this, { place, title, format, group, from, names: [], data: [[]], plot: null });
    place.setAttribute("role", "img");
    charts.add(this);
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(place);
  }

  // Show columns of equal length: times, then one column for each name.
  show(names, columns) {
    this.data = columns;
    if (this.plot === null || names.join("\n") !== this.names.join("\n")) {
      this.names = names;
      this.draw();
    } else {
      this.plot.setData(columns);
    }
    const latest = columns.slice(1).map((column) => column.findLast((value) => value !== null));
    const said = names.map((name, index) => `${name} ${this.format(latest[index])}`);
    this.place.setAttribute("aria-label", `${this.title}, latest: ${said.join(", ")}`);
  }

  draw() {
    this.plot?.destroy();
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    this.plot = new uPlot({
      width: this.width(),
      height: 190,
      cursor: { sync: { key: this.group }, drag: { x: true, y: false } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [this.from ?? low, high > (this.from ?? low) ? high * 1.05 : (this.from ?? low) + 1] } },
      series: [
        { value: (_, time) => (time === null ? "–" : new Date(time * 1000).toLocaleTimeString([], { hour12: false })) },
        ...this.names.map((label, index) => ({
          label,
          stroke: colour(LINES[index % LINES.length]),
          width: 2,
          dash: index % 2 ? [6, 3] : [],
          points: { show: this.data[0].length < 2 },
          value: (_, value) => this.format(value),
        })),
      ],
      axes: [
        { ...axis, values: (_, times) => times.map((time) => new Date(time * 1000).toLocaleTimeString([], { hour12: false })), space: 80 },
        { ...axis, size: 92, values: (_, values) => values.map(this.format) },
      ],
    }, this.data, this.place);
  }

  width() {
    return Math.max(this.place.clientWidth, 120);
  }

  resize() {
    if (this.plot !== null && this.plot.width !== this.width()) this.plot.setSize({ width: this.width(), height: 190 });
  }

  remove() {
    this.watcher.disconnect();
    this.plot?.destroy();
    charts.delete(this);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts) if (chart.plot !== null) chart.draw();
});

const FORMATS = { milliseconds, percent, rate };

// The charts of step times and shares.
export class StepCharts {
  constructor(section) {
    const [times, shares] = section.querySelectorAll(".chart");
    this.note = section.querySelector(".note");
    this.times = new Chart(times, { title: "Step time", format: FORMATS.milliseconds, group: "steps", from: 0 });
    this.shares = new Chart(shares, { title: "Share of waits", format: FORMATS.percent, group: "steps", from: 0 });
  }

  show(panel) {
    const label = panel.pipeline ? "waiting for other stages" : "exposed communication";
    this.times.show(["step, median of ranks", "longest step"], [panel.time_s, panel.median_ms, panel.longest_ms]);
    this.shares.show([label], [panel.time_s, panel.share]);
    this.note.textContent = panel.time_s.length === 0
      ? "No rank has reported a step: steps come from slackline.overlap and slackline.pipeline."
      : panel.width > 1 ? `Each point sums up ${panel.width} steps.` : "Each point is a step.";
  }
}
