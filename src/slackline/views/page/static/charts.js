// Lines over time, drawn by uPlot; colours are those of the page's style. Times of faults are shaded.

import { SHARE, TIME, clock, day, element, number, say, show, unitOf, zone } from "./text.js";

/* global uPlot */

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const LINES = ["--accent", "--exposed", "--compute", "--weights"];
const FONT = "12px system-ui, sans-serif";
const LANES = 4; // the most faults at a time that have bars of their own; further ones share the last lane
const LANE = 5;
const DAY = 86400;
const charts = new Set();
let faults = [];

// Set the faults that all charts shade, except those with faults of their own.
export function setFaults(list) {
  faults = list;
  for (const chart of charts) chart.plot?.redraw(false);
}

// A chart in `place`, with the same x axis as the other charts of `group`.
export class Chart {
  constructor(place, { title, quantity, group }) {
    Object.assign(this, { place, title, quantity, group, names: [], data: [[]], plot: null, faults: null });
    this.frame = element("div", { class: "plot" });
    this.caption = element("p", { class: "caption" });
    place.replaceChildren(this.frame, this.caption);
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
    const said = names.map((name, index) => `${name} ${show(this.quantity, latest[index])}`);
    const top = this.top(columns.slice(1).flat().reduce((most, each) => Math.max(most, each ?? 0), 0));
    this.place.setAttribute("aria-label", `${this.title} on an axis up to ${show(this.quantity, top)}, latest: ${said.join(", ")}`);
  }

  draw() {
    this.plot?.destroy();
    const line = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: colour("--dim"), font: FONT, labelFont: FONT, labelSize: 18, grid: line, ticks: line };
    const times = (_, found) => found.map(this.long() ? day : clock);
    this.plot = new uPlot({
      width: this.width(),
      height: this.height(),
      padding: [LANES * LANE + 4, null, null, null],
      cursor: { sync: { key: this.group }, drag: { x: true, y: false } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, this.top(high) || 1] } },
      bands: this.bands(),
      series: [{ label: "at", value: (_, time) => (time === null ? "–" : clock(time)) }, ...this.series()],
      axes: [
        { ...axis, label: `time of day (${zone()})`, values: times, size: 34, space: this.long() ? 110 : 80 },
        { ...axis, label: this.title, size: 58, values: (_, values) => values.map((value) => number(value / this.unit()[1])) },
      ],
      hooks: {
        drawClear: [() => this.shade()],
        draw: [(plot) => { this.mark(plot); this.showLatest(plot); this.describe(); }],
        setCursor: [(plot) => { this.showLatest(plot); this.describe(); }],
      },
    }, this.data, this.frame);
  }

  // Whether the chart covers more than a day, so that times need dates.
  long() {
    return (this.data[0].at(-1) ?? 0) - (this.data[0][0] ?? 0) > DAY;
  }

  series() {
    return this.names.map((label, index) => ({
      label,
      stroke: colour(LINES[index % LINES.length]),
      width: 2,
      dash: index % 2 ? [6, 3] : [],
      points: { show: this.data[0].length < 2 },
      value: (_, value) => show(this.quantity, value),
    }));
  }

  bands() {
    return [];
  }

  // Return the upper end of the y axis, given the largest value of all columns.
  top(high) {
    return high * 1.05;
  }

  unit() {
    return unitOf(this.quantity, this.plot?.scales.y.max ?? 0);
  }

  // Shade the times of faults, draw a bar for each above the chart, and set the title of the y axis, before the axes and lines are drawn.
  shade() {
    const { ctx, bbox, scales, axes } = this.plot;
    const ratio = devicePixelRatio;
    axes[1].label = `${this.title} (${this.unit()[0].trim()})`;
    const { min, max } = scales.x;
    const found = (this.faults ?? faults)
      .map(({ since_s: since, until_s: until }) => [Math.max(since, min), Math.min(until ?? max, max)])
      .filter(([since, until]) => since <= until)
      .sort(([one], [other]) => one - other);
    const lanes = Array(LANES).fill(-Infinity);
    let drawn = -Infinity;
    ctx.save();
    for (const [since, until] of found) {
      const [from, fresh, to] = [since, Math.max(since, drawn), until].map((time) => this.plot.valToPos(time, "x", true));
      ctx.fillStyle = colour("--shade");
      if (until >= drawn) ctx.fillRect(fresh, bbox.top, Math.max(to - fresh, ratio), bbox.height);
      drawn = Math.max(drawn, until);
      const free = lanes.findIndex((busy) => busy < since);
      const lane = free < 0 ? LANES - 1 : free;
      lanes[lane] = Math.max(lanes[lane], until);
      ctx.fillStyle = colour("--bad");
      ctx.fillRect(from, bbox.top - (lane + 1) * LANE * ratio, Math.max(to - from, 2 * ratio), (LANE - 2) * ratio);
    }
    ctx.restore();
  }

  mark() {}

  // Without a cursor, the legend has the latest values.
  showLatest(plot) {
    if ((plot.cursor.left ?? -1) < 0 && this.data[0].length > 0) plot.setLegend({ idx: this.data[0].length - 1 }, false);
  }

  // Say below the chart what is shaded: at the cursor, or in general.
  describe() {
    const all = this.faults ?? faults;
    const { left, idx } = this.plot?.cursor ?? {};
    const { min, max } = this.plot?.scales.x ?? {};
    const shown = all.filter((fault) => fault.since_s <= max && (fault.until_s ?? max) >= min);
    if (left === undefined || left < 0) {
      const count = shown.length === 1 ? "a fault lasted" : `${shown.length} faults lasted`;
      return say(this.caption, shown.length === 0 ? "" : `Shaded: times in which ${count}, each with a bar above; move the pointer there for the reasons.`);
    }
    const time = this.plot.posToVal(left, "x");
    const here = shown.filter((fault) => fault.since_s <= time && time <= (fault.until_s ?? max)).map((fault) => fault.text);
    say(this.caption, [...this.remarks(idx), ...here].join("; "));
  }

  // Return sentences about the entry at the cursor.
  remarks() {
    return [];
  }

  width() {
    return Math.max(this.frame.clientWidth, 120);
  }

  height() {
    return innerWidth >= 1760 ? 300 : 220;
  }

  resize() {
    const [width, height] = [this.width(), this.height()];
    if (this.plot !== null && (this.plot.width !== width || this.plot.height !== height)) this.plot.setSize({ width, height });
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

// Step times: the median in a band of percentiles. The scale is that of the band; steps above it are marks at the
// upper edge, so that the rare long steps at the ends of epochs do not flatten the rest.
class StepTimes extends Chart {
  static NAMES = ["median", "25th percentile", "75th percentile", "longest step"];
  static ROOM = 1.4;
  static LONG = 1.25;

  // `full` is the number of the first entries that sum up too few steps for percentiles.
  update(panel) {
    this.full = Math.min(Math.ceil(8 / panel.width) - 1, Math.max(panel.time_s.length - 1, 0));
    this.show(StepTimes.NAMES, [panel.time_s, panel.median_ms, panel.low_ms, panel.high_ms, panel.longest_ms]);
  }

  series() {
    const [median, low, high, longest] = super.series();
    const edge = { stroke: colour("--band-edge"), width: 1, dash: [], points: { show: false } };
    return [
      { ...median, stroke: colour("--accent") },
      { ...low, ...edge },
      { ...high, ...edge },
      { ...longest, stroke: colour("--exposed"), paths: () => null, points: { show: false } },
    ];
  }

  bands() {
    return [{ series: [3, 2], fill: colour("--band") }];
  }

  top() {
    return StepTimes.ROOM * this.data[3].slice(this.full).reduce((most, each) => Math.max(most, each), 0);
  }

  mark(plot) {
    const { ctx, bbox, scales } = plot;
    const [times, , , highs, longest] = this.data;
    const size = 5 * devicePixelRatio;
    ctx.save();
    ctx.fillStyle = colour("--exposed");
    times.forEach((time, index) => {
      if (time < scales.x.min || time > scales.x.max || longest[index] <= StepTimes.LONG * highs[index]) return;
      const x = plot.valToPos(time, "x", true);
      ctx.beginPath();
      if (longest[index] > scales.y.max) {
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x - size, bbox.top + 1.6 * size);
        ctx.lineTo(x + size, bbox.top + 1.6 * size);
      } else {
        ctx.arc(x, plot.valToPos(longest[index], "y", true), size / 2, 0, 2 * Math.PI);
      }
      ctx.fill();
    });
    ctx.restore();
  }

  remarks(index) {
    const longest = this.data[4][index];
    return longest > (this.plot.scales.y.max ?? Infinity) ? [`a step of ${show(TIME, longest)}, above the scale`] : [];
  }
}

// The charts of step times and shares.
export class StepCharts {
  constructor(section) {
    const [times, shares] = section.querySelectorAll(".chart");
    this.note = section.querySelector(".note");
    this.times = new StepTimes(times, { title: "step time", quantity: TIME, group: "steps" });
    this.shares = new Chart(shares, { title: "share of a step", quantity: SHARE, group: "steps" });
  }

  show(panel) {
    this.times.update(panel);
    this.shares.show([panel.pipeline ? "waiting for other stages" : "exposed communication"], [panel.time_s, panel.share]);
    say(this.note, panel.time_s.length === 0
      ? "No rank has reported a step: an optimizer's step, slackline.overlap and slackline.pipeline report them."
      : panel.width > 1 ? `Each point sums up ${panel.width} steps.` : "Each point is a step.");
  }
}
