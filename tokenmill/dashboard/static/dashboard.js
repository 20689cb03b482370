// Follows the run by server-sent events, and says so when it cannot.

import { offer } from "./actions.js";
import * as charts from "./charts.js";
import { at, clock, duration, each, fill, make, makeSvg, number, setText, share, short } from "./dom.js";

const SILENCE_MS = 30000;
const AGAIN_MS = 2000;
let heardAt = Date.now();
let connected = false;

// -- the connection

let source = null;

function connect() {
  source?.close();
  source = new EventSource("events");
  source.addEventListener("history", (event) => hear(event, ({ points }) => charts.restart(points)));
  source.addEventListener("details", (event) => hear(event, details));
  source.addEventListener("state", (event) => hear(event, show));
  source.addEventListener("quiet", (event) => hear(event, () => {}));
  source.addEventListener("error", lost);
}

function hear(event, use) {
  heardAt = Date.now();
  connected = true;
  use(JSON.parse(event.data));
}

function lost() {
  connected = false;
  banner("The dashboard does not answer; what is shown is from before. Trying again.");
  // The browser tries again by itself, unless it was answered with an error.
  if (source.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_MS);
}

setInterval(() => {
  if (connected && Date.now() - heardAt > SILENCE_MS) {
    lost();
    connect();
  }
}, 5000);

function banner(text) {
  const node = at("banner");
  setText(node, text);
  node.hidden = !text;
}

// -- what is heard

function show({ status, news, point, can_act: canAct, time }) {
  banner(news ? `${news[0].toUpperCase()}${news.slice(1)}.` : "");
  setText(at("when"), `${news ? "Last tried" : "As of"} ${clock(time)}`);
  offer(canAct, status);
  if (!status) return;
  head(status);
  budgets(status.datasets);
  servers(status.servers);
  workers(status.workers);
  if (point) charts.append(point);
}

function head(status) {
  document.title = `${status.run}: ${status.state}`;
  setText(at("run"), status.run);
  const state = status.suspended && status.state !== "complete" ? "paused" : status.state;
  setText(at("state"), state);
  at("state").className = `pill ${state}`;
  at("simulated").hidden = status.sglang !== "simulated";
  each(at("troubles"), status.troubles, () => make("li"), (item, trouble) => {
    item.className = trouble.level;
    if (item.children.length !== 2) item.replaceChildren(make("strong"), make("span"));
    setText(item.children[0], trouble.what);
    setText(item.children[1], ` → ${trouble.mend}`);
  });
  tiles(status);
}

function tiles(status) {
  const sum = (rows, of) => rows.reduce((total, row) => total + (of(row) ?? 0), 0);
  const sets = status.datasets;
  const spent = sum(sets, (set) => set.spent);
  const caps = sets.every((set) => set.cap !== null) ? sum(sets, (set) => set.cap) : null;
  const rate = sum(sets, (set) => set.tokens_per_s);
  const missing = sum(sets, (set) => (set.complete ? 0 : Math.max(0, (set.cap ?? 0) - set.spent)));
  const up = status.servers.filter((server) => server.state === "up").length;
  const slots = sum(status.workers, (worker) => worker.slots);
  const flying = sum(status.workers, (worker) => worker.in_flight);
  const items = [
    ["Tokens", caps ? `${short(spent)} of ${short(caps)}` : short(spent)],
    ["Tokens/s", short(rate)],
    ["Time left", caps && rate && missing ? duration(missing / rate) : "-"],
    ["Complete", `${sets.filter((set) => set.complete).length} of ${sets.length}`],
    ["In flight", slots ? `${number(flying)} of ${number(slots)}` : number(flying)],
    ["Servers up", `${up} of ${status.servers.length}`],
    ["Workers", number(status.workers.length)],
    ["Rejected", number(sum(sets, (set) => set.rejected))],
  ];
  each(at("tiles"), items, () => make("div"), (tile, [name, value]) => {
    if (!tile.children.length) tile.append(make("dt"), make("dd"));
    setText(tile.children[0], name);
    setText(tile.children[1], value);
  });
}

function budgets(datasets) {
  const rows = datasets.map((set) => {
    const ended = set.committed + set.rejected;
    const short_of = set.cap !== null && !set.complete && set.forecast < set.cap;
    const left = { budget: "complete", prompts: "no prompts left" }[set.reason] ?? duration(set.eta_s);
    return [
      { text: set.name, kind: "head" },
      { draw: (cell) => bar(cell, set) },
      { text: short(set.spent), kind: "n" },
      { text: short(set.cap), kind: "n" },
      { text: short(set.forecast), kind: short_of ? "n notice" : "n" },
      { text: short(set.tokens_per_s), kind: "n" },
      { text: left, kind: { budget: "n good", prompts: "n notice" }[set.reason] ?? "n" },
      { text: number(set.leased), kind: "n" },
      { text: number(set.queued), kind: "n" },
      { text: share(set.truncated, Math.max(set.committed, set.truncated)), kind: "n" },
      { text: share(set.rejected, ended), kind: set.rejected ? "n notice" : "n" },
    ];
  });
  fill(at("datasets"), rows);
}

function bar(cell, set) {
  if (!cell.drawing) {
    const full = { y: 3, height: 10 };
    cell.drawing = makeSvg("svg", { class: "bar", viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img" });
    cell.drawing.append(makeSvg("rect", { class: "rest", x: 0, width: 1000, ...full }), makeSvg("rect", { x: 0, ...full }));
    cell.replaceChildren(cell.drawing);
  }
  const part = set.cap ? Math.min(1, set.spent / set.cap) : set.cap === 0 ? 1 : 0;
  const label = set.cap === null ? `${set.name}: ${number(set.spent)} tokens, no cap`
    : `${set.name}: ${number(set.spent)} of ${number(set.cap)} tokens, ${share(set.spent, set.cap)}`;
  cell.drawing.setAttribute("aria-label", label);
  cell.drawing.lastChild.setAttribute("class", set.reason === "budget" ? "done" : "main");
  cell.drawing.lastChild.setAttribute("width", (1000 * part).toFixed(1));
}

function servers(found) {
  const rows = found.map((server) => [
    { text: server.url, kind: "head" },
    { text: server.state, kind: { up: "good", down: "bad" }[server.state] ?? "notice" },
    { text: number(server.running), kind: "n" },
    { text: number(server.waiting), kind: "n" },
    { text: short(server.tokens_per_s), kind: "n" },
    { text: server.reason, kind: "wrap" },
  ]);
  fill(at("servers-table"), rows);
}

function workers(found) {
  setText(at("workers-count"), `${number(found.length)} worker ${found.length === 1 ? "process" : "processes"}`);
  const rows = found.map((worker) => [
    { text: worker.name, kind: "head" },
    worker.host,
    worker.state,
    { text: number(worker.in_flight), kind: "n" },
    { text: worker.slots === null ? "-" : number(worker.slots), kind: "n" },
    { text: worker.server.replaceAll(",", ", "), kind: "wrap" },
  ]);
  fill(at("workers-table"), rows);
}

function details({ lengths, rejects }) {
  charts.lengths(lengths);
  at("rejects-none").hidden = rejects.length > 0;
  each(at("rejects-list"), rejects, reject, (node, rejected) => {
    const [summary, list] = node.children;
    setText(summary, `${rejected.dataset}, ${rejected.reason}: ${rejected.id}`);
    [rejected.detail, rejected.row].forEach((text, index) => setText(list.children[2 * index + 1], text));
  });
}

function reject() {
  const node = make("details");
  const list = make("dl", "example");
  list.append(make("dt", "", "Detail"), make("dd"), make("dt", "", "Row"), make("dd", "code"));
  node.append(make("summary"), list);
  return node;
}

connect();
