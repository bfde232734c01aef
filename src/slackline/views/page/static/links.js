// The matrix of links and the history of one cell.

import { Chart } from "./charts.js";
import { element, milliseconds, percent, RATE, rate, say, SHARE, span, TIME } from "./text.js";

const ROOMY = 8; // the most ranks whose cells have room for figures
const LETTERS = { slow: "S", losing: "L", silent: "N", cut: "C" };
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class Links {
  constructor(section) {
    this.section = section;
    this.table = section.querySelector("table");
    this.note = section.querySelector(".note");
    this.history = new History(section.querySelector("#link"));
    this.ranks = [];
    this.cells = new Map();
    this.table.addEventListener("keydown", (event) => this.press(event));
    this.table.addEventListener("click", (event) => this.select(event.target.closest("td.cell")));
  }

  show(panel) {
    if (panel.ranks.join() !== this.ranks.join()) this.build(panel.ranks);
    for (const cell of panel.cells) this.fill(this.cells.get(`${cell.source}>${cell.target}`), cell);
    say(this.note, this.remark(panel));
    this.history.refresh();
  }

  remark(panel) {
    if (panel.cells.length === 0) {
      return "No rank has reported a link: links over shared memory have no reports, others report each second with traffic.";
    }
    const letters = panel.ranks.length > ROOMY ? "S: slow, L: losing packets, N: silent, C: cut. " : "";
    return letters + (panel.world > panel.ranks.length ? `${panel.ranks.length} of ${panel.world} ranks, those of disturbed links first.` : "");
  }

  build(ranks) {
    this.ranks = ranks;
    this.cells.clear();
    this.small = ranks.length > ROOMY;
    this.table.classList.toggle("small", this.small);
    const [to, from] = this.small ? ["", ""] : ["to ", "from "];
    const head = element("tr", {}, element("th", { scope: "col" }, ""), ...ranks.map((rank, index) =>
      element("th", { scope: "col", "aria-label": `to ${rank}` }, this.small && index % 2 ? "" : `${to}${rank}`)));
    const rows = ranks.map((source) => {
      const cells = ranks.map((target) => {
        const cell = element("td", { role: "gridcell" });
        if (source !== target) this.cells.set(`${source}>${target}`, cell);
        return cell;
      });
      return element("tr", {}, element("th", { scope: "row", "aria-label": `from ${source}` }, `${from}${source}`), ...cells);
    });
    this.table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
  }

  fill(cell, given) {
    const condition = given.condition === "well" ? (given.idle ? "idle" : "well") : given.condition;
    const name = `${given.source}>${given.target}`;
    const part = given.affected && given.rails > 1 ? ` ${given.affected} of ${given.rails}` : "";
    cell.className = `cell ${condition}`;
    cell.dataset.link = name;
    if (!cell.hasAttribute("tabindex")) cell.tabIndex = this.table.querySelector('td[tabindex="0"]') ? -1 : 0;
    cell.setAttribute("aria-selected", String(this.history.link === name));
    const loss = given.loss === null ? "" : `, ${percent(given.loss)} of packets lost`;
    const figures = given.idle ? "no traffic" : rate(given.rate_bps);
    cell.setAttribute("aria-label",
      `rank ${given.source} to rank ${given.target}: ${condition}${part && ` on${part} rails`}, ${figures}, round trip ${milliseconds(given.round_trip_ms)}${loss}`);
    cell.title = this.small ? [cell.getAttribute("aria-label"), given.sentence].filter(Boolean).join("; ") : given.sentence;
    if (this.small) return say(cell, LETTERS[condition] ?? "");
    const lines = [condition + part, figures, `${milliseconds(given.round_trip_ms)}${given.loss ? `, ${percent(given.loss)}` : ""}`];
    if (cell.childElementCount !== lines.length) cell.replaceChildren(...lines.map(() => element("small")));
    lines.forEach((line, index) => say(cell.children[index], line));
  }

  press(event) {
    const cell = event.target.closest("td.cell");
    if (cell === null) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.select(cell);
    } else if (event.key in MOVES) {
      event.preventDefault();
      this.move(cell, MOVES[event.key]);
    }
  }

  // Move the focus to the next cell in a direction that has reports.
  move(cell, [down, right]) {
    const [source, target] = cell.dataset.link.split(">").map((rank) => this.ranks.indexOf(Number(rank)));
    for (let row = source + down, column = target + right;
      row >= 0 && column >= 0 && row < this.ranks.length && column < this.ranks.length;
      row += down, column += right) {
      const next = this.cells.get(`${this.ranks[row]}>${this.ranks[column]}`);
      if (next?.dataset.link) {
        this.table.querySelector('td[tabindex="0"]').tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
        return;
      }
    }
  }

  select(cell) {
    if (cell === null || cell === undefined) return;
    this.table.querySelector('td[tabindex="0"]').tabIndex = -1;
    cell.tabIndex = 0;
    for (const each of this.cells.values()) if (each.dataset.link) each.setAttribute("aria-selected", String(each === cell));
    this.history.open(cell.dataset.link);
  }
}

// The reports of one direction over time, and its disturbances.
class History {
  constructor(place) {
    this.place = place;
    this.link = null;
    this.charts = [];
    this.loading = false;
  }

  open(link) {
    this.link = link;
    for (const chart of this.charts) chart.remove();
    const [source, target] = link.split(">");
    const places = [1, 2, 3].map(() => element("div", { class: "chart" }));
    this.sentences = element("ul", { "aria-label": "Disturbances" });
    this.remark = element("p", { class: "note" });
    this.place.replaceChildren(element("h3", {}, `Link ${source}>${target}`), this.remark, this.sentences, ...places);
    this.place.hidden = false;
    this.charts = [
      new Chart(places[0], { title: "rate", quantity: RATE, group: "link" }),
      new Chart(places[1], { title: "round trip", quantity: TIME, group: "link" }),
      new Chart(places[2], { title: "packets sent again", quantity: SHARE, group: "link" }),
    ];
    this.refresh();
  }

  async refresh() {
    if (this.link === null || this.loading) return;
    const wanted = this.link;
    this.loading = true;
    try {
      const [source, target] = wanted.split(">");
      const answer = await fetch(`/links/${source}/${target}`);
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const given = await answer.json();
      if (wanted === this.link) this.show(given);
    } catch (error) {
      say(this.remark, `The history cannot be read: ${error.message}`);
    } finally {
      this.loading = false;
    }
    if (wanted !== this.link) await this.refresh();
  }

  show(given) {
    const names = (what) => given.rails.map((each) => `${what}, rail ${each.rail} (${each.kind})`);
    const columns = (key) => [given.time_s, ...given.rails.map((each) => each[key])];
    for (const chart of this.charts) chart.faults = given.sentences;
    this.charts[0].show(names("rate"), columns("rate_bps"));
    this.charts[1].show(names("round trip"), columns("round_trip_ms"));
    const counts = given.rails.some((each) => each.loss.some((loss) => loss !== null));
    this.charts[2].place.hidden = !counts;
    if (counts) this.charts[2].show(names("sent again"), columns("loss"));
    say(this.remark, `${given.time_s.length} reports, ${given.rails.length} rail${given.rails.length === 1 ? "" : "s"}.`);
    this.sentences.replaceChildren(...given.sentences.map((each) =>
      element("li", {}, element("time", {}, span(each.since_s, each.until_s)), ` ${each.text}`)));
  }
}
