// The page at /: a form, the chart and table of its answer, and the same query as a command and a request.
"use strict";

const FIELDS = ["metric", "tags", "aggregator", "downsample", "rate", "start", "end"];
const TABLE_ROWS = 1000;
const SUGGESTIONS = 50;
const element = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
let shown = [];

async function fetchJson(path) {
  const response = await fetch(path);
  const body = await response.json();
  if (!response.ok) throw new Error(body.error.message);
  return body;
}

function setOptions(list, values) {
  list.replaceChildren(...values.map((value) => Object.assign(document.createElement("option"), { value, textContent: value })));
}

async function suggestMetrics() {
  const names = await fetchJson(`api/suggest?type=metrics&max=${SUGGESTIONS}&q=${encodeURIComponent(element("metric").value)}`);
  setOptions(element("metrics"), names);
}

// The tags of the metric behind what is already typed, since an input takes one suggestion for its whole value.
async function suggestTags() {
  const metric = element("metric").value;
  if (!metric) return;
  const found = await fetchJson(`api/search/lookup?limit=1000&m=${encodeURIComponent(metric)}`);
  const tags = new Set();
  for (const { tags: one } of found.results)
    for (const [key, value] of Object.entries(one)) tags.add(`${key}=*`).add(`${key}=${value}`);
  const typed = element("tags").value.replace(/[^,]*$/, "");
  setOptions(element("tag-list"), [...tags].sort().slice(0, 500).map((tag) => typed + tag));
}

function view() {
  return Object.fromEntries(FIELDS.map((name) => [name, element(name).value.trim()]));
}

const tagsOf = (text) => text.split(",").map((tag) => tag.trim()).filter(Boolean);

function requestOf({ metric, tags, aggregator, downsample, rate, start, end }) {
  const braces = tagsOf(tags).length ? `{${tagsOf(tags).join(",")}}` : "";
  const m = [aggregator, downsample, rate, metric + braces].filter(Boolean).join(":");
  const query = new URLSearchParams({ start, m, ms: "true", arrays: "true" });
  if (end && end !== "now") query.set("end", end);
  return `grafana/api/query?${query}`;
}

// For sh, bash and zsh, where a word that begins with = is a command; control characters could end a terminal's paste.
function quoted(word) {
  const shown = word.replace(/\p{Cc}/gu, "\uFFFD");
  return /^[\w.:/@%+-][\w.:=/@%+-]*$/.test(shown) ? shown : `'${shown.replaceAll("'", "'\\''")}'`;
}

function commandOf({ metric, tags, aggregator, downsample, rate, start, end }) {
  const list = tagsOf(tags);
  const isLikeOption = metric.startsWith("-");
  const words = ["timebeam", "query", ...(isLikeOption ? [] : [metric]), "--start", start, "--aggregator", aggregator];
  if (end && end !== "now") words.push("--end", end);
  if (downsample) words.push("--downsample", downsample);
  if (rate) words.push("--rate", rate);
  if (list.length) words.push("--tag", ...list, "--group_by", ...list.map((tag) => tag.split("=")[0]));
  if (isLikeOption) words.push("--", metric);
  return words.map(quoted).join(" ");
}

function nameOf({ metric, tags }) {
  const pairs = Object.entries(tags).map(([key, value]) => `${key}=${value}`);
  return pairs.length ? `${metric}{${pairs.join(",")}}` : metric;
}

function drawChart() {
  const ink = getComputedStyle(document.body).color;
  const grid = dark.matches ? "#444" : "#ddd";
  const traces = shown.map((result) => ({
    name: nameOf(result).replaceAll("&", "&amp;").replaceAll("<", "&lt;"),
    x: result.dps.map(([time]) => new Date(time).toISOString()),
    y: result.dps.map(([, value]) => value),
    mode: result.dps.length > 1 ? "lines" : "markers",
  }));
  const axis = { gridcolor: grid, zerolinecolor: grid };
  const layout = {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: ink },
    margin: { t: 20, r: 20 }, showlegend: true, xaxis: axis, yaxis: axis,
  };
  Plotly.react("chart", traces, layout, { responsive: true, displaylogo: false });
}

function fillTable() {
  const rows = [];
  for (const result of shown)
    for (const [time, value] of result.dps) {
      if (rows.length === TABLE_ROWS) break;
      const row = document.createElement("tr");
      for (const text of [nameOf(result), new Date(time).toISOString(), String(value)])
        row.insertCell().textContent = text;
      rows.push(row);
    }
  element("rows").replaceChildren(...rows);
  return rows.length;
}

async function show() {
  const asked = view();
  const request = requestOf(asked);
  element("command").textContent = commandOf(asked);
  element("request").textContent = new URL(request.replace("grafana/", ""), location.href).href;
  element("link").href = `?${new URLSearchParams(asked)}`;
  element("links").hidden = element("data").hidden = false;
  element("message").textContent = "…";
  try {
    shown = await fetchJson(request);
  } catch (error) {
    shown = [];
    element("message").textContent = error.message;
  }
  const points = shown.reduce((sum, result) => sum + result.dps.length, 0);
  const rows = fillTable();
  drawChart();
  if (element("message").textContent === "…") {
    const cut = rows < points ? `; the table shows the first ${rows}` : "";
    element("message").textContent = points ? `${shown.length} series, ${points} points${cut}` : "no points in this time range";
  }
}

async function begin() {
  const aggregators = await fetchJson("api/aggregators");
  setOptions(element("aggregator"), aggregators.sort());
  element("aggregator").value = "sum";
  const asked = new URLSearchParams(location.search);
  for (const name of FIELDS) if (asked.has(name)) element(name).value = asked.get(name);
  if (element("metric").value) await show();
}

const report = (error) => { element("message").textContent = error.message; };
element("metric").addEventListener("input", () => suggestMetrics().catch(report));
element("metric").addEventListener("focus", () => suggestMetrics().catch(report));
element("tags").addEventListener("focus", () => suggestTags().catch(report));
element("tags").addEventListener("input", () => suggestTags().catch(report));
element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  history.pushState(null, "", `?${new URLSearchParams(view())}`);
  show();
});
for (const button of document.querySelectorAll("[data-copies]"))
  button.addEventListener("click", () => navigator.clipboard.writeText(element(button.dataset.copies).textContent));
addEventListener("popstate", () => location.reload());
dark.addEventListener("change", () => shown.length && drawChart());
begin().catch(report);
