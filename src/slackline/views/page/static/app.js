// The page: it receives the panels as server-sent events and shows each where it belongs.

import { setFaults as shadeCharts, StepCharts } from "./charts.js";
import { Pipeline, setFaults as shadeDrawings, Timeline } from "./drawings.js";
import { followHelp } from "./help.js";
import { Links } from "./links.js";
import { clock, element, milliseconds, number, percent, say, span, zone } from "./text.js";

const at = (id) => document.getElementById(id);

// Fill a table with a row for each item; a column is its name, a function of the item, and help.
function fillTable(table, columns, items, textColumns) {
  const look = (name) => (textColumns.includes(name) ? "text" : null);
  if (table.tHead === null) {
    const head = element("tr", {}, ...columns.map(([name, , help]) =>
      element("th", { scope: "col", class: look(name), "data-help": help }, name)));
    table.append(element("thead", {}, head), element("tbody"));
  }
  const rows = items.map((each) => element("tr", {}, ...columns.map(([name, value]) =>
    element("td", { class: look(name) }, value(each)))));
  table.tBodies[0].replaceChildren(...rows);
}

const STATES = {
  running: () => "the job runs",
  silent: (seen) => `no rank has written since ${clock(seen)}`,
  ended: (seen) => `the job has ended at ${clock(seen)}`,
  gone: (seen) => `the job has ended: its processes are gone, the latest record is of ${clock(seen)}`,
  removed: () => "the job has ended: its files have been removed",
};

const FIGURES = {
  job: "The number of ranks and hosts, the time from the first record to the latest, and the ranks that have ended.",
  steps: "The number of steps of the first optimizer or of the pipeline, and the median duration of the latest 50.",
  exposed: "The time of the median step in which the training thread waited for communication, and its share of the step.",
  operations: "Collectives and messages of the program that have ended, and the bytes of their buffers on one rank.",
  links: "Pairs of ranks joined by TCP or UDP, their shortest round trips, and the share of packets that were sent again.",
  disturbed: "Directions of links that were slow, lost packets, were silent or were cut, and for how long.",
  slow: "Causes of slow steps: NICs, switches, hosts, ranks or data loaders that were found slow.",
  deaths: "Ranks that died, and ranks that were started again.",
  decisions: "The latest choices of the library: plans of collectives, groups of gradients, plans of the pipeline.",
  promised: "A step time that the library predicted before it changed a plan, and the median of the steps that followed.",
};

class Overview {
  show(panel) {
    say(at("directory"), panel.directory);
    const state = at("state");
    state.className = panel.state;
    say(state, STATES[panel.state](panel.seen_s));
    at("figures").replaceChildren(...panel.summary.map(([name, value]) =>
      element("div", {}, element("dt", { "data-help": FIGURES[name] }, name), element("dd", {}, value))));
    this.ranks(panel);
  }

  ranks(panel) {
    const columns = [
      ["rank", (each) => each.rank, "The rank in the job."],
      ["host", (each) => each.host, "The name of the rank's host."],
      ["state", (each) => each.state, "running; silent: no record for five seconds; ended: in good order; gone: the process has ended without a final record"],
      ["steps", (each) => each.steps, "Steps of the first optimizer, or of the pipeline."],
      ["step time", (each) => milliseconds(each.step_ms || null), "The median duration of the latest 50 steps."],
      ["steps/s", (each) => (each.step_ms ? number(1000 / each.step_ms) : "–"), "Steps a second: the inverse of the step time."],
      ["waits for", (each) => each.waits_for, "What the training thread waits for: communication, or other stages of the pipeline."],
      ["exposed", (each) => (each.step_ms ? milliseconds(each.exposed_ms) : "–"), "The time of the median step in which the training thread waited."],
      ["share", (each) => (each.step_ms ? percent(each.share) : "–"), "The exposed time as a share of the step."],
      ["operations", (each) => each.operations, "Collectives and messages of the program that have ended."],
      ["failed", (each) => each.failed, "Operations that have failed."],
      ["restarts", (each) => each.restarts, "Processes that were started for this rank after its first one."],
      ["lost", (each) => each.lost, "Records and operations that are missing from the rank's file."],
    ];
    if (panel.ranks.some((each) => each.device)) {
      columns.push(["device", (each) => each.device, "The circuit or twin that adds for the rank, and the shares of its cycles: busy, and the longest stalls."]);
    }
    const section = at("ranks");
    fillTable(section.querySelector("table"), columns, panel.ranks, ["host", "state", "waits for", "device"]);
    say(section.querySelector(".note"), panel.left_out ? `${panel.left_out} further ranks are left out.` : "");
  }
}

// Causes, findings and decisions, each in a list whose items stay in place when others are added before them.
class Messages {
  constructor(section) {
    [this.causeNote, this.findingNote, this.decisionNote] = section.querySelectorAll(".note");
  }

  show(panel) {
    const of = (wanted) => panel.messages.filter(({ kind }) => kind === wanted);
    this.fill(at("causes"), panel.causes, (cause) => this.cause(cause));
    this.fill(at("findings"), of("finding"), (message) => this.line(message));
    this.fill(at("decisions"), of("decision"), (message) => this.line(message));
    say(this.causeNote, panel.causes.length ? "" : "No NIC, switch, host, rank or data loader has been found slow.");
    say(this.decisionNote, of("decision").length ? "" : "The library has made no choice yet.");
    say(this.findingNote, of("finding").length ? "" : "No other link and no other rank has been found slow.");
  }

  line({ time_s: time, text }) {
    return element("li", {}, element("time", {}, clock(time)), element("span", {}, text));
  }

  cause({ time_s: since, over_s: over, text, findings }) {
    const item = element("li", { class: over === null ? "lasting" : "over" },
      element("time", {}, span(since, over)), element("span", {}, text));
    if (findings.length) {
      const count = `${findings.length} ${findings.length === 1 ? "finding" : "findings"} explained`;
      item.append(element("details", {}, element("summary", {}, count),
        element("ul", {}, ...findings.map((finding) => this.line(finding)))));
    }
    return item;
  }

  fill(list, messages, make) {
    messages.forEach((message, index) => {
      const key = JSON.stringify(message);
      const name = `${message.time_s} ${message.text}`;
      const present = list.children[index];
      if (present?.dataset.key === key) return;
      const item = make(message);
      Object.assign(item.dataset, { key, name });
      if (present?.dataset.name !== name) return list.insertBefore(item, present ?? null);
      const [before, after] = [present, item].map((each) => each.querySelector("details"));
      if (before && after) after.open = before.open;
      present.replaceWith(item);
    });
    while (list.childElementCount > messages.length) list.lastElementChild.remove();
  }
}

const SOURCES = {
  schedule: "replay of the pipeline's plan",
  groups: "trial of groups of gradients",
};

class Promises {
  show(panel) {
    const section = at("promises");
    section.hidden = panel.promises.length === 0;
    const columns = [
      ["at", (each) => clock(each.time_s), "The time of the prediction."],
      ["rank", (each) => each.rank, "The rank that predicted for all ranks."],
      ["promised by", (each) => SOURCES[each.source] ?? each.source, "The part of the library that predicted the step time, and its method."],
      ["choice", (each) => each.choice, "The plan, or the groups of gradients, that the prediction is about."],
      ["promised", (each) => milliseconds(each.promised_ms), "The predicted duration of a step with this choice."],
      ["measured", (each) => milliseconds(each.measured_ms), "The median duration of the steps since then, until the next prediction."],
      ["ratio", (each) => (each.ratio === null ? "–" : number(each.ratio)), "Measured divided by promised: above 1, steps are slower than promised."],
      ["steps", (each) => each.steps, "The number of these steps."],
    ];
    fillTable(section.querySelector("table"), columns, panel.promises, ["promised by", "choice"]);
    say(section.querySelector(".note"), panel.left_out ? `${panel.left_out} earlier promises are left out.` : "");
  }
}

class Problems {
  show(panel) {
    const section = at("problems");
    section.hidden = panel.problems.length === 0;
    section.querySelector("ul").replaceChildren(...panel.problems.map((text) => element("li", {}, text)));
  }
}

class Faults {
  show(panel) {
    shadeCharts(panel.faults);
    shadeDrawings(panel.faults);
  }
}

const views = {
  overview: new Overview(),
  messages: new Messages(at("messages")),
  promises: new Promises(),
  faults: new Faults(),
  steps: new StepCharts(at("steps")),
  links: new Links(at("links")),
  timeline: new Timeline(at("timeline")),
  pipeline: new Pipeline(at("pipeline")),
  problems: new Problems(),
};

// While the page is paused, only the latest content of each panel is kept.
const held = new Map();
let paused = false;

at("pause").addEventListener("click", (event) => {
  paused = !paused;
  event.target.setAttribute("aria-pressed", String(paused));
  say(event.target, paused ? "Continue" : "Pause");
  for (const [name, panel] of held) views[name].show(panel);
  held.clear();
});

say(at("zone"), `times of day: ${zone()}`);
followHelp();

const lose = (sentence) => say(at("connection"), sentence);

const events = new EventSource("/events");
for (const [name, view] of Object.entries(views)) {
  events.addEventListener(name, (event) => {
    const panel = JSON.parse(event.data);
    if (paused) held.set(name, panel);
    else view.show(panel);
  });
}
events.addEventListener("open", () => {
  lose("");
  if (at("state").textContent === "connecting") say(at("state"), "connected");
});
events.addEventListener("closed", () => {
  events.close();
  lose("the server has ended; the page shows the last state");
});
events.addEventListener("error", () => lose("no connection; trying again"));

// The token is in a cookie by now; the history of the browser need not have it.
if (location.search !== "") history.replaceState(null, "", location.pathname);
