// Drawings with a row for each rank: the timeline of operations, and a pipeline's grid.

import { bytes, clock, milliseconds, number, percent, say, shape, TIME, unitOf } from "./text.js";

const LABEL = 118;
const AXIS = 40;
const LISTED = 8;
const ROW = 16;
const LANE = 7;
const GAP = 8;

const KINDS = { F: "forward", B: "backward", BW: "backward", W: "weights" };

let faults = [];
const drawings = new Set();

// Set the faults whose times the drawings shade.
export function setFaults(list) {
  faults = list;
  for (const drawing of drawings) drawing.draw();
}

// Return a sentence with the share of waits of each rank, or with their range for many ranks.
function waits(ranks) {
  if (ranks.length <= LISTED) return ranks.map((rank) => `rank ${rank.rank} waits ${percent(rank.waiting)}`).join(", ");
  const shares = ranks.map((rank) => rank.waiting);
  return `${ranks.length} ranks wait ${percent(Math.min(...shares))} to ${percent(Math.max(...shares))}`;
}

// A drawing that fills the width of its section and is drawn again when the width changes.
class Drawing {
  constructor(section) {
    this.section = section;
    this.place = section.querySelector(".drawing");
    this.note = section.querySelector(".note");
    this.panel = null;
    drawings.add(this);
    new ResizeObserver(() => this.draw()).observe(this.place);
  }

  show(panel) {
    this.panel = panel;
    this.draw();
  }

  draw() {
    const width = this.place.clientWidth;
    if (this.panel === null || width === 0) return;
    const scale = (width - LABEL - 4) / Math.max(this.panel.length_ms ?? 0, 1e-9);
    this.x = (time) => LABEL + time * scale;
    const drawn = [];
    let y = 4;
    for (const rank of this.panel.ranks) {
      drawn.push(shape("text", { x: 0, y: y + 12 }, `rank ${rank.rank}`,
        shape("tspan", { class: "share", x: LABEL - 8, "text-anchor": "end" }, percent(rank.waiting))));
      y += this.row(rank, y, drawn) + GAP;
    }
    if (this.panel.ranks.length > 0) {
      this.axis(y, width, drawn);
      drawn.unshift(...this.shades(y));
    }
    const height = y + AXIS;
    this.place.replaceChildren(
      shape("svg", { role: "img", "aria-label": this.label(), width, height, viewBox: `0 0 ${width} ${height}` }, ...drawn));
    say(this.note, this.remark());
  }

  // Return a shade for each fault that lasts in a part of the time that is drawn.
  shades(height) {
    const { begin_s: begin, length_ms: length } = this.panel;
    const inside = (time) => Math.min(Math.max((time - begin) * 1000, 0), length);
    return faults
      .map((fault) => [inside(fault.since_s), fault.until_s === null ? length : inside(fault.until_s), fault.text])
      .filter(([from, to]) => to > from)
      .map(([from, to, text]) => shape("rect", { class: "shade", x: this.x(from), y: 0, width: this.x(to) - this.x(from), height },
        shape("title", {}, text)));
  }

  axis(y, width, drawn) {
    const count = width < 600 ? 3 : 6;
    const [unit, size] = unitOf(TIME, this.panel.length_ms);
    drawn.push(shape("text", { class: "title", x: (LABEL + width) / 2, y: y + 32, "text-anchor": "middle" },
      `time since ${clock(this.panel.begin_s)} (${unit.trim()})`));
    for (let tick = 0; tick <= count; tick += 1) {
      const time = (this.panel.length_ms * tick) / count;
      const x = this.x(time);
      drawn.push(shape("line", { class: "tick", x1: x, x2: x, y1: 0, y2: y }));
      const anchor = tick === count ? "end" : tick === 0 ? "start" : "middle";
      drawn.push(shape("text", { x, y: y + 14, "text-anchor": anchor }, number(time / size)));
    }
  }

  bar(kind, begin, end, y, height, title, drawn) {
    const x = this.x(begin);
    const width = Math.max(this.x(end) - x, 1);
    drawn.push(shape("rect", { class: kind, x, y, width, height, rx: 1 }, shape("title", {}, title)));
    return { x, width };
  }
}

export class Timeline extends Drawing {
  row(rank, y, drawn) {
    const end = this.panel.length_ms;
    this.bar("compute", 0, end, y, ROW, `rank ${rank.rank} computes`, drawn);
    for (const [from, to] of rank.waits) {
      this.bar("wait", from, to, y, ROW, `rank ${rank.rank} waits for ${milliseconds(to - from)}`, drawn);
    }
    for (const [from, to, number] of rank.steps) {
      const x = this.x(to);
      drawn.push(shape("line", { stroke: "currentColor", x1: x, x2: x, y1: y - 3, y2: y + ROW + 3 },
        shape("title", {}, `step ${number} ends: ${milliseconds(to - from)}`)));
    }
    let lanes = 0;
    for (const [lane, from, to, kind, size, plan, failed] of rank.operations) {
      lanes = Math.max(lanes, lane + 1);
      const words = [kind, bytes(size), plan, milliseconds(to - from), failed ? "failed" : ""];
      this.bar(failed ? "failed" : "operation", from, to, y + ROW + 2 + lane * LANE, LANE - 2,
        words.filter(Boolean).join(", "), drawn);
    }
    return ROW + 2 + lanes * LANE;
  }

  label() {
    return `Operations of the latest ${milliseconds(this.panel.length_ms)}: ${waits(this.panel.ranks)}`;
  }

  remark() {
    const { ranks, left_out: more, apart, plain } = this.panel;
    if (ranks.length === 0) return "No rank has written a record.";
    const few = ranks.reduce((sum, rank) => sum + rank.left_out, 0);
    return [
      ranks.length > LISTED ? `${waits(ranks)}.` : "",
      plain ? "DDP and FSDP also wait where no operation shows it: the exposed time in the table of ranks has all waits." : "",
      few ? `${few} short operations are left out.` : "",
      more ? `${more} further ranks are left out.` : "",
      apart.length ? `No probe compares the clocks of ranks ${apart.join(", ")}: their times are those of their own hosts.` : "",
    ].filter(Boolean).join(" ");
  }
}

export class Pipeline extends Drawing {
  show(panel) {
    this.section.hidden = panel.ranks.length === 0;
    super.show(panel);
  }

  row(rank, y, drawn) {
    const height = ROW + 6;
    for (const [from, to] of rank.bubbles) {
      this.bar("bubble", from, to, y, height, `bubble of ${milliseconds(to - from)}`, drawn);
    }
    for (const [kind, stage, microbatch, from, to] of rank.instructions) {
      const token = stage === null ? kind : `${stage}${kind}${microbatch}`;
      const { x, width } = this.bar(KINDS[kind] ?? "operation", from, to, y, height, `${token}: ${milliseconds(to - from)}`, drawn);
      if (width > 26) drawn.push(shape("text", { class: "inside", x: x + width / 2, y: y + height / 2 + 4 }, token));
    }
    return height;
  }

  label() {
    return `Pipeline, step ${this.panel.step}, plan ${this.panel.plan}: ${waits(this.panel.ranks)}`;
  }

  remark() {
    const { ranks, step, plan, change } = this.panel;
    if (ranks.length === 0) return "";
    return `Step ${step}, plan ${plan}: ${waits(ranks)}.${change ? ` The plan changed: ${change}` : ""}`;
  }
}
