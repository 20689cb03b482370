// What was over time (uPlot), and how long answers are (plain SVG).

import { at, each, fill, make, makeSvg, number, setText, short, clock } from "./dom.js";

const MOST = 1440;
const SHOWN_ROWS = 30;
const points = { time: [], rate: [], flying: [], slots: [] };
const charts = [];

export function restart(given) {
  for (const name of Object.keys(points)) points[name].length = 0;
  given.forEach(add);
  draw();
}

export function append(point) {
  add(point);
  // As the server does: when there are too many, every second one is enough.
  if (points.time.length > MOST) {
    for (const name of Object.keys(points)) points[name] = points[name].filter((_, index) => index % 2);
  }
  draw();
}

function add(point) {
  points.time.push(point.time);
  points.rate.push(point.tokens_per_s);
  points.flying.push(point.in_flight);
  points.slots.push(point.slots);
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function options(node, series) {
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  return {
    width: Math.max(200, node.clientWidth),
    height: node.clientHeight,
    legend: { show: false },
    cursor: { show: false },
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high) * 1.1] } },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map(clock), space: 90, size: 30 },
      { ...axis, values: (_, ticks) => ticks.map(short), size: 56 },
    ],
    series: [{}, ...series],
  };
}

function line(name, { dashed = false, filled = false } = {}) {
  return {
    stroke: colour(name),
    width: 2,
    dash: dashed ? [6, 4] : undefined,
    fill: filled ? `${colour(name)}22` : undefined,
    points: { show: false },
  };
}

const KINDS = [
  ["rate", () => [line("--main", { filled: true })], () => [points.time, points.rate]],
  [
    "slots",
    () => [line("--main", { filled: true }), line("--soft", { dashed: true })],
    () => [points.time, points.flying, points.slots],
  ],
];

function build() {
  charts.splice(0).forEach((chart) => chart.destroy());
  for (const [id, series, data] of KINDS) {
    charts.push(new window.uPlot(options(at(id), series()), data(), at(id)));
  }
}

function draw() {
  if (!charts.length) build();
  charts.forEach((chart, index) => chart.setData(KINDS[index][2]()));
  const last = points.time.length - 1;
  if (last < 0) return;
  const most = points.rate.reduce((high, value) => Math.max(high, value), 0);
  setText(at("rate-text"), `${number(points.rate[last])} now; at most ${number(most)}.`);
  const busy = points.slots[last] ? `, ${Math.round((100 * points.flying[last]) / points.slots[last])} % busy` : "";
  setText(at("slots-text"), `${number(points.flying[last])} of ${number(points.slots[last])} slots now${busy}.`);
  if (at("history").closest("details").open) table();
}

function table() {
  const rows = [];
  for (let index = points.time.length - 1; index >= 0 && rows.length < SHOWN_ROWS; index -= 1) {
    rows.push([
      { text: clock(points.time[index]), kind: "head" },
      { text: number(points.rate[index]), kind: "n" },
      { text: number(points.flying[index]), kind: "n" },
      { text: number(points.slots[index]), kind: "n" },
    ]);
  }
  fill(at("history"), rows);
}

at("history").closest("details").addEventListener("toggle", table);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build);
new ResizeObserver(() => {
  charts.forEach((chart, index) => {
    const node = at(KINDS[index][0]);
    if (node.clientWidth && node.clientWidth !== chart.width) {
      chart.setSize({ width: node.clientWidth, height: node.clientHeight });
    }
  });
}).observe(at("rate"));

// -- lengths

export function lengths(found) {
  const entries = Object.entries(found);
  at("lengths-none").hidden = entries.length > 0;
  each(at("histograms"), entries, () => make("div"), (node, [name, lengthsOf]) => {
    const known = JSON.stringify([name, lengthsOf]);
    if (node.known === known) return;
    node.known = known;
    node.replaceChildren(make("h3", "", name), ...histogram(name, lengthsOf));
  });
  const rows = entries.flatMap(([name, { starts, counts, end }]) =>
    counts.map((count, index) => [
      { text: name, kind: "head" },
      `${number(starts[index])} to ${number((starts[index + 1] ?? end) - 1)}`,
      { text: number(count), kind: "n" },
    ]),
  );
  fill(at("lengths-table"), rows);
}

function histogram(name, { starts, counts, end }) {
  const all = counts.reduce((sum, count) => sum + count, 0);
  const most = Math.max(1, ...counts);
  let before = 0;
  const middle = counts.findIndex((count) => (before += count) * 2 >= all);
  const median = `${number(all)} answers, median ~${short(starts[middle])}`;
  const drawing = makeSvg("svg", {
    class: "columns",
    viewBox: `0 0 ${counts.length} 100`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": `Lengths of the answers of ${name}, in tokens: ${median}`,
  });
  counts.forEach((count, index) => {
    const tall = count ? Math.max(1.5, (100 * count) / most) : 0;
    drawing.append(
      makeSvg("rect", { class: "main", x: index + 0.05, y: 100 - tall, width: 0.9, height: tall }),
    );
  });
  const scale = make("div", "scale");
  scale.setAttribute("aria-hidden", "true");
  scale.append(make("span", "", short(starts[0])), make("span", "", short(end)));
  return [make("div", "soft", median), drawing, scale];
}
