// The page at /: a form, the chart and table of its answer, and the same query as a command and a request.
"use strict";

const FIELDS = ["metric", "tags", "aggregator", "downsample", "rate", "start", "end", "timezone"];
const TABLE_ROWS = 1000;
const SUGGESTIONS = 50;
const element = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
let shown = [];
let shownZone = "UTC";

async function fetchJson(path, query) {
  const response = await fetch(path, query && { method: "POST", body: JSON.stringify(query) });
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
  const { results } = await fetchJson("api/search/lookup", { metric, limit: 1000 });
  const tags = new Set();
  for (const series of results)
    for (const [key, value] of Object.entries(series.tags)) tags.add(`${key}=*`).add(`${key}=${value}`);
  const typed = element("tags").value.replace(/(\\,|[^,])*$/, "");
  setOptions(element("tag-list"), [...tags].sort().slice(0, 500).map((tag) => typed + tag.replaceAll(",", "\\,")));
}

function view() {
  return Object.fromEntries(FIELDS.map((name) => [name, element(name).value.trim()]));
}

// [key, value] of each tag: they are separated by commas, and a comma in a name is written \,
function tagsOf(text) {
  const tags = text.split(/(?<!\\),/).map((tag) => tag.trim().replaceAll("\\,", ",")).filter(Boolean);
  return tags.map((tag) => [tag.split("=", 1)[0], tag.split("=").slice(1).join("=")]);
}

// A time as ISO 8601 in a time zone, with its offset; without it for the chart, whose axis knows no zones.
function timeText(time_ms, zone, hasOffset = true) {
  if (zone === "UTC") return new Date(time_ms).toISOString();
  const two = "2-digit";
  const form = {
    year: "numeric", month: two, day: two, hour: two, minute: two, second: two, fractionalSecondDigits: 3,
    hourCycle: "h23", timeZoneName: "longOffset", timeZone: zone,
  };
  const parts = new Intl.DateTimeFormat("en-US", form).formatToParts(time_ms);
  const of = Object.fromEntries(parts.map(({ type, value }) => [type, value]));
  const offset = of.timeZoneName.slice("GMT".length) || "+00:00";
  return `${of.year}-${of.month}-${of.day}T${of.hour}:${of.minute}:${of.second}.${of.fractionalSecond}${hasOffset ? offset : ""}`;
}

// The path, and the body of a query that `m` cannot express: a time zone, or names with the characters that separate its words.
function requestOf({ metric, tags, aggregator, downsample, rate, start, end, timezone }) {
  const pairs = tagsOf(tags);
  const until = end && end !== "now" ? { end } : {};
  const zone = timezone && timezone !== "UTC" ? { timezone } : {};
  if (zone.timezone || /[:{}]/.test(metric) || pairs.flat().some((name) => /[:{},=]/.test(name))) {
    const rateOptions = { counter: rate.includes("counter"), dropResets: rate.includes("drop") };
    const query = { metric, aggregator, downsample: downsample || null, rate: !!rate, rateOptions, tags: Object.fromEntries(pairs) };
    return ["api/query?arrays=true", { start, ...until, ...zone, msResolution: true, queries: [query] }];
  }
  const braces = pairs.length ? `{${pairs.map((pair) => pair.join("=")).join(",")}}` : "";
  const m = [aggregator, downsample, rate, metric + braces].filter(Boolean).join(":");
  return [`api/query?${new URLSearchParams({ start, m, ms: "true", arrays: "true", ...until })}`];
}

// For sh, bash and zsh, where a word that begins with = is a command; control characters could end a terminal's paste.
function quoted(word) {
  const shown = word.replace(/\p{Cc}/gu, "\uFFFD");
  return /^[\w.:/@%+-][\w.:=/@%+-]*$/.test(shown) ? shown : `'${shown.replaceAll("'", "'\\''")}'`;
}

function commandOf({ metric, tags, aggregator, downsample, rate, start, end, timezone }) {
  const pairs = tagsOf(tags);
  const isLikeOption = metric.startsWith("-");
  const words = ["timebeam", "query", ...(isLikeOption ? [] : [metric]), "--start", start, "--aggregator", aggregator];
  if (end && end !== "now") words.push("--end", end);
  if (timezone && timezone !== "UTC") words.push("--timezone", timezone);
  if (downsample) words.push("--downsample", downsample);
  if (rate) words.push("--rate", rate);
  words.push(...pairs.flatMap((pair) => ["--tag", pair.join("=")]), ...pairs.flatMap(([key]) => ["--group-by", key]));
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
    x: result.dps.map(([time]) => timeText(time, shownZone, false)),
    y: result.dps.map(([, value]) => value),
    mode: result.dps.length > 1 ? "lines" : "markers",
  }));
  const axis = (type) => ({ type, gridcolor: grid, zerolinecolor: grid }); // one each: Plotly writes into it
  const layout = {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: ink },
    margin: { t: 20, r: 20 }, showlegend: true, xaxis: axis("date"), yaxis: axis("linear"),
  };
  Plotly.react("chart", traces, layout, { responsive: true, displaylogo: false });
}

function fillTable() {
  const rows = [];
  for (const result of shown)
    for (const [time, value] of result.dps) {
      if (rows.length === TABLE_ROWS) break;
      const row = document.createElement("tr");
      for (const text of [nameOf(result), timeText(time, shownZone), String(value)])
        row.insertCell().textContent = text;
      rows.push(row);
    }
  element("rows").replaceChildren(...rows);
  return rows.length;
}

async function show() {
  const asked = view();
  const [path, body] = requestOf(asked);
  const address = new URL(path, location.href).href;
  element("command").textContent = commandOf(asked);
  element("request").textContent = body ? ["curl", "--data", JSON.stringify(body), address].map(quoted).join(" ") : address;
  element("link").href = `?${new URLSearchParams(asked)}`;
  element("links").hidden = element("data").hidden = false;
  element("message").textContent = "…";
  try {
    shown = await fetchJson(`grafana/${path}`, body);
    shownZone = element("shown-timezone").textContent = asked.timezone || "UTC";
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
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  setOptions(element("timezones"), [...new Set(["UTC", own, ...Intl.supportedValuesOf("timeZone")])]);
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
