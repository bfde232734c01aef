// The page: it receives the panels as server-sent events and shows each where it belongs.

import { StepCharts } from "./charts.js";
import { Pipeline, Timeline } from "./drawings.js";
import { Links } from "./links.js";
import { clock, element, milliseconds, percent, say } from "./text.js";

const at = (id) => document.getElementById(id);

// Fill a table with a row for each item; a column is its name and a function of the item.
function fillTable(table, columns, items, textColumns) {
  const look = (name) => (textColumns.includes(name) ? "text" : null);
  const head = element("tr", {}, ...columns.map(([name]) => element("th", { scope: "col", class: look(name) }, name)));
  const rows = items.map((each) => element("tr", {}, ...columns.map(([name, value]) =>
    element("td", { class: look(name) }, value(each)))));
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
}

class Overview {
  show(panel) {
    say(at("directory"), panel.directory);
    const state = at("state");
    state.dataset.job = panel.ended ? "the job has ended" : "the job runs";
    say(state, state.dataset.job);
    at("figures").replaceChildren(...panel.summary.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value))));
    this.ranks(panel);
  }

  ranks(panel) {
    const columns = [
      ["rank", (each) => each.rank], ["host", (each) => each.host], ["steps", (each) => each.steps],
      ["step", (each) => milliseconds(each.step_ms || null)], ["waits for", (each) => each.waits_for],
      ["share", (each) => percent(each.share)], ["operations", (each) => each.operations],
      ["failed", (each) => each.failed], ["restarts", (each) => each.restarts], ["records lost", (each) => each.lost],
    ];
    const section = at("ranks");
    fillTable(section.querySelector("table"), columns, panel.ranks, ["host", "waits for"]);
    say(section.querySelector(".note"), panel.left_out ? `${panel.left_out} further ranks are left out.` : "");
  }
}

// Causes, findings and decisions, each in a list whose items stay in place when others are added before them.
class Messages {
  constructor(section) {
    [this.causeNote, this.findingNote] = section.querySelectorAll(".note");
  }

  show(panel) {
    const of = (wanted) => panel.messages.filter(({ kind }) => kind === wanted);
    this.fill(at("causes"), panel.causes, (cause) => this.cause(cause));
    this.fill(at("findings"), of("finding"), (message) => this.line(message));
    this.fill(at("decisions"), of("decision"), (message) => this.line(message));
    say(this.causeNote, panel.causes.length ? "" : "No NIC, switch, host, rank or data loader has been found slow.");
    say(this.findingNote, of("finding").length ? "" : "No other link and no other rank has been found slow.");
  }

  line({ time_s: time, text }) {
    return element("li", {}, element("time", {}, clock(time)), element("span", {}, text));
  }

  cause({ time_s: since, over_s: over, text, findings }) {
    const times = over === null ? `since ${clock(since)}` : `${clock(since)} to ${clock(over)}`;
    const item = element("li", { class: over === null ? "lasting" : "over" },
      element("time", {}, times), element("span", {}, text));
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
      ["at", (each) => clock(each.time_s)], ["rank", (each) => each.rank],
      ["promised by", (each) => SOURCES[each.source] ?? each.source], ["choice", (each) => each.choice],
      ["promised", (each) => milliseconds(each.promised_ms)], ["measured", (each) => milliseconds(each.measured_ms)],
      ["ratio", (each) => (each.ratio === null ? "–" : each.ratio.toFixed(2))], ["steps", (each) => each.steps],
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

const views = {
  overview: new Overview(),
  messages: new Messages(at("messages")),
  promises: new Promises(),
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

function lose(sentence) {
  at("state").classList.add("lost");
  say(at("state"), sentence);
}

const events = new EventSource("/events");
for (const [name, view] of Object.entries(views)) {
  events.addEventListener(name, (event) => {
    const panel = JSON.parse(event.data);
    if (paused) held.set(name, panel);
    else view.show(panel);
  });
}
events.addEventListener("open", () => {
  at("state").classList.remove("lost");
  say(at("state"), at("state").dataset.job ?? "connected");
});
events.addEventListener("closed", () => {
  events.close();
  lose("the server has ended; the page shows the last state");
});
events.addEventListener("error", () => lose("no connection; trying again"));

// The token is in a cookie by now; the history of the browser need not have it.
if (location.search !== "") history.replaceState(null, "", location.pathname);
