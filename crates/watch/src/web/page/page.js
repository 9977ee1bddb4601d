"use strict";
const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const EVERY = 1000, PATIENCE = 8000;
let picture = null, goneSince = null, goneWhy = "", paused = false, heard = null, timer = 0;

/* Nodes are made once and changed in place; text is only ever text. */
const put = (node, text) => { text = String(text); if (node.textContent !== text) node.textContent = text; };
const attr = (node, name, value) => {
  if (value === null || value === false) { if (node.hasAttribute(name)) node.removeAttribute(name); }
  else { value = value === true ? "" : String(value); if (node.getAttribute(name) !== value) node.setAttribute(name, value); }
};
const style = (node, name, value) => { if (node.style[name] !== value) node.style[name] = value; };
const make = (tag, kind, parent, text) => {
  const node = document.createElement(tag);
  if (kind) node.className = kind;
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
};
const draw = (tag, kind, parent) => {
  const node = document.createElementNS(SVG, tag);
  if (kind) node.setAttribute("class", kind);
  parent.append(node);
  return node;
};
/* As many children as there are items; those that stay are kept. */
const each = (parent, items, create, fill) => {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => fill(parent.children[index] || create(parent), item, index));
};

const number = new Intl.NumberFormat("en-US");
const count = value => value === null || value === undefined ? "–" : number.format(value);
const rate = value => {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value < 0.01) return "<0.01";
  return value < 1 ? value.toFixed(2) : value < 10 ? value.toFixed(1) : number.format(Math.round(value));
};
const SPANS = [[31557600, "y"], [86400, "d"], [3600, "h"], [60, "min"]];
const span = ms => {
  const s = ms / 1000;
  for (const [size, unit] of SPANS) if (s >= size) return (s / size).toFixed(s / size < 9.95 ? 1 : 0) + " " + unit;
  return s >= 1 ? Math.round(s) + " s" : ms + " ms";
};
const ago = ms => {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 90) return s + " s";
  if (s < 5400) return Math.round(s / 60) + " min";
  if (s < 129600) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " d";
};
const late = ms => ms === null || ms === undefined ? "–" : ms < 1000 ? (ms < 10 ? ms.toFixed(1) : Math.round(ms)) + " ms" : (ms / 1000).toFixed(1) + " s";
const clock = at => new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const day = at => new Date(at).toDateString() === new Date().toDateString() ? clock(at) : new Date(at).toLocaleDateString() + " " + clock(at);
const messages = n => count(n) + (n === 1 ? " message" : " messages");
/* The daemon's clock, so that ages do not depend on this one. `heard` is when the picture was taken, by ours. */
const now = () => heard && picture ? Date.parse(picture.at) + (performance.now() - heard) : Date.now();

/* the cascade */
const rows = new Map();
const GROUPS = [[86400 * 365.25, "years"], [86400, "days"], [3600, "hours"], [60, "minutes"], [0, "seconds"]];
const group = ms => GROUPS.find(([size]) => ms / 1000 >= size)[1];
let scale = 4;
const length = n => n ? Math.log10(1 + n) / scale : 0;

function buildLevels(levels) {
  const body = $("levels");
  let last = null;
  for (const level of levels) {
    const row = make("tr", "", body);
    const kind = group(level.wait_ms);
    if (kind !== last) row.classList.add("first");
    last = kind;
    const wait = make("th", "", row, span(level.wait_ms));
    wait.scope = "row";
    wait.title = "level " + level.level + ", queue " + level.queue;
    make("span", "away", wait, ", " + wait.title);
    const bar = make("td", "bar", row), track = make("div", "track", bar);
    for (let power = 0; power < 9; power++) make("div", "grid", track);
    rows.set(level.level, {
      row, track, fill: make("div", "fill", track), hold: make("div", "hold", track),
      ready: make("td", "ready", row), stuck: make("td", "stuck", row),
    });
    row.dataset.level = level.level;
  }
}

function showLevels() {
  const levels = picture.levels;
  if (!rows.size) buildLevels(levels);
  const most = Math.max(...levels.map(level => (level.ready || 0) + (level.handing_on || 0)));
  scale = Math.max(4, Math.ceil(Math.log10(1 + most)));
  each($("axis"), [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9].slice(0, scale + 1), axis => make("span", "", axis), (node, n) => {
    put(node, n >= 1e9 ? n / 1e9 + "G" : n >= 1e6 ? n / 1e6 + "M" : n >= 1e3 ? n / 1e3 + "k" : n);
    style(node, "left", 100 * length(n) + "%");
  });
  for (const level of levels) {
    const nodes = rows.get(level.level), ready = level.ready, stuck = level.stuck || 0, due = level.handing_on || 0;
    attr(nodes.row, "data-busy", Boolean(ready || due));
    attr(nodes.row, "data-stuck", level.stuck_since ? true : null);
    nodes.track.querySelectorAll(".grid").forEach((line, power) => {
      style(line, "left", 100 * length(10 ** power) + "%");
      style(line, "display", power <= scale ? "" : "none");
    });
    style(nodes.fill, "width", 100 * length(ready) + "%");
    const whole = length((ready || 0) + due), held = due ? Math.max(whole - length(ready), 0.035) : 0;
    style(nodes.hold, "left", 100 * Math.min(length(ready), 1 - held) + "%");
    style(nodes.hold, "width", 100 * held + "%");
    style(nodes.hold, "display", due ? "" : "none");
    put(nodes.ready, ready === null ? "missing" : ready ? count(ready) : "·");
    if (!nodes.since) { nodes.stuckN = make("span", "", nodes.stuck); nodes.since = make("span", "since", nodes.stuck); }
    put(nodes.stuckN, stuck || due ? count(stuck || due) : "");
    put(nodes.since, stuck && level.stuck_since ? " · " + ago(now() - Date.parse(level.stuck_since)) : "");
  }
}

/* layouts: only the levels that are not empty */
function showLayouts() {
  const all = picture.layouts;
  attr($("layouts"), "hidden", !all.length);
  each($("layouts"), all, parent => {
    const section = make("section", "", parent), head = make("div", "head", section);
    make("h2", "", head); make("span", "small quiet", head);
    make("ul", "more", section);
    const table = make("table", "list", section), row = make("tr", "", make("thead", "", table));
    for (const [text, kind] of [["stays", ""], ["waiting", "n"], ["due", "n"]]) make("th", kind, row, text).scope = "col";
    make("tbody", "", table); make("p", "small quiet", section);
    return section;
  }, (section, it) => {
    const [head, words, table, note] = section.children, name = "Layout " + it.layout;
    attr(section, "aria-label", name);
    put(head.children[0], name);
    put(head.children[1], it.counted ? messages(it.waiting) + (it.waiting === 1 ? " waits" : " wait") + `, ${count(it.stuck)} stuck` : "");
    const said = [{ severity: it.verdict.severity || "info", text: it.verdict.headline }, ...it.verdict.more];
    each(words, said, list => make("li", "", list), (li, remark) => { attr(li, "data-severity", remark.severity); put(li, remark.text); });
    const busy = it.levels.filter(level => level.ready !== 0 || level.handing_on);
    style(table, "display", busy.length ? "" : "none");
    each(table.tBodies[0], busy, body => { const row = make("tr", "", body); for (const kind of ["", "n", "n held"]) make("td", kind, row); return row; }, (row, level) => {
      const due = level.stuck ? "▲ " + count(level.stuck) + (level.stuck_since ? " · " + ago(now() - Date.parse(level.stuck_since)) : "") : level.handing_on ? count(level.handing_on) : "";
      attr(row, "data-stuck", level.stuck ? true : null); attr(row, "title", "level " + level.level + ", queue " + level.queue);
      row.dataset.level = level.level;
      [span(level.wait_ms), level.ready === null ? it.missing ? "missing" : count(null) : count(level.ready), due].forEach((text, index) => put(row.children[index], text));
    });
    const guard = !it.guarded ? "No guard is set." : it.guarded < it.exchanges ? `A guard is set on ${it.guarded} of ${it.exchanges} exchanges.`
      : it.unroutable === null ? "Guarded, but not by delayline." : `Guarded; the guard keeps ${messages(it.unroutable)}.`;
    put(note, [sentence(it.problem), ...(it.counted ? [guard, `Counted at ${day(it.counted)}.`] : []), ...it.unchecked.map(text => "Not checked: " + sentence(text))].filter(Boolean).join(" "));
  });
}

function showForecast() {
  each($("forecast"), picture.forecast, body => {
    const row = make("tr", "", body);
    make("th", "", row).scope = "row"; make("td", "est", row); make("td", "small quiet", row);
    return row;
  }, (row, f) => {
    row.dataset.within = f.within;
    ["next " + f.within, "≈ " + count(f.estimate), f.at_least ? `at least ${count(f.at_least)}` : ""].forEach((text, index) => put(row.children[index], text));
  });
}

/* A moment is ten seconds. The moment that began before the minute is mostly in it. */
const lastMinute = moments => {
  const arrived = moments.filter(m => m.worst_ms !== null), recent = arrived.filter(m => now() - Date.parse(m.at) < 65000);
  const worst = Math.max(...recent.map(m => m.worst_ms)), middles = recent.map(m => m.middle_ms).sort((a, b) => a - b);
  return recent.length ? `last minute: median ${late(middles[middles.length >> 1])}, worst ${late(worst)}` : arrived.length ? "last minute: nothing arrived" : "nothing has arrived yet";
};

/* lateness: the middle as a line, the worst as bars above it, the overdue hatched */
const chart = {};
const MARKS = [1, 10, 100, 1000, 10000, 60000, 600000];
function showLateness() {
  const canary = picture.canary, svg = $("chart");
  style(svg, "display", canary ? "" : "none"); style($("ways"), "display", canary ? "" : "none");
  if (!canary) { put($("late-now"), ""); put($("late-note"), "This daemon runs no canary, so lateness is not measured."); return; }
  const moments = canary.lateness, W = svg.getBoundingClientRect().width || 480, H = 148, left = 44, right = 4, foot = 18;
  if (!chart.grid) {
    const hatch = draw("pattern", "", draw("defs", "", svg));
    for (const [k, v] of [["id", "hatch"], ["width", 6], ["height", 6], ["patternUnits", "userSpaceOnUse"], ["patternTransform", "rotate(45)"]]) attr(hatch, k, v);
    const ground = draw("rect", "h1", hatch), line = draw("path", "h2", hatch);
    attr(ground, "width", 6); attr(ground, "height", 6); attr(line, "d", "M0 0V6");
    for (const name of ["grid", "times", "worst", "over"]) chart[name] = draw("g", "", svg);
    chart.mid = draw("path", "mid", svg);
  }
  const peak = Math.max(100, ...moments.map(m => Math.max(m.worst_ms || 0, m.overdue_ms || 0)));
  const ceiling = MARKS.find(mark => mark >= peak) || 3600000;
  const low = Math.log10(1), high = Math.log10(ceiling);
  const y = ms => H - foot - (H - foot - 8) * (Math.log10(Math.max(1, ms)) - low) / (high - low);
  const end = Math.max(Date.parse(picture.at), moments.length ? Date.parse(moments[moments.length - 1].at) : 0) + 10000, past = moments.length ? end - Date.parse(moments[0].at) : 0;
  const minutes = [6, 12, 30].find(m => past <= m * 60000) || 30, range = minutes * 60000;
  const x = at => left + (W - left - right) * (1 - (end - at) / range);
  each(chart.grid, MARKS.filter(mark => mark <= ceiling), g => { const n = draw("g", "", g); draw("path", "gl", n); draw("text", "", n); return n; }, (n, mark) => {
    attr(n.children[0], "d", `M${left} ${y(mark)}H${W - right}`);
    attr(n.children[1], "x", left - 8); attr(n.children[1], "y", y(mark) + 4); attr(n.children[1], "text-anchor", "end");
    put(n.children[1], mark < 1000 ? mark + " ms" : mark < 60000 ? mark / 1000 + " s" : mark / 60000 + " min");
  });
  each(chart.times, [minutes, 2 * minutes / 3, minutes / 3, 0], g => draw("text", "", g), (n, m) => {
    attr(n, "x", x(end - m * 60000)); attr(n, "y", H - 2); attr(n, "text-anchor", m === minutes ? "start" : m ? "middle" : "end");
    put(n, m ? m + " min ago" : "now");
  });
  const shown = moments.map(m => ({ ...m, t: Date.parse(m.at) + 5000 })).filter(m => m.t > end - range);
  each(chart.worst, shown.filter(m => m.worst_ms !== null), g => draw("path", "worst", g), (n, m) => attr(n, "d", `M${x(m.t).toFixed(1)} ${y(m.middle_ms).toFixed(1)}V${(y(m.worst_ms) - .1).toFixed(1)}`));
  const wide = (W - left - right) / (range / 10000);
  each(chart.over, shown.filter(m => m.overdue_ms > 0), g => draw("rect", "over", g), (n, m) => {
    attr(n, "x", (x(m.t) - wide / 2).toFixed(1)); attr(n, "width", wide.toFixed(1)); attr(n, "y", y(m.overdue_ms).toFixed(1)); attr(n, "height", (H - foot - y(m.overdue_ms)).toFixed(1));
  });
  let d = "", pen = "M";
  for (const m of shown) { if (m.middle_ms === null) { pen = "M"; continue; } d += `${pen}${x(m.t).toFixed(1)} ${y(m.middle_ms).toFixed(1)}`; pen = "L"; }
  attr(chart.mid, "d", d);
  const said = lastMinute(shown);
  put($("late-now"), said);
  attr(svg, "aria-label", "Lateness of canary messages over time; " + said);
  each($("ways"), canary.probes, list => { const li = make("li", "", list); make("span", "", li); make("b", "", li); return li; }, (li, probe) => {
    const bits = probe.levels.split("+");
    attr(li, "title", "levels " + probe.levels);
    const bad = probe.overdue || probe.missing;
    attr(li, "data-bad", bad ? (bits.length > 1 ? "way" : "level") : null);
    /* The name of a bad route must be readable, not only in a tooltip. */
    put(li.children[0], bits.length > 1 ? (bad ? "levels " + probe.levels.replaceAll("+", "+\u200b") : bits.length + " levels") : "level " + Number(probe.levels));
    put(li.children[1], probe.missing ? "▲ " + count(probe.missing) + " missing" : probe.overdue ? "▲ " + count(probe.overdue) + " overdue" : late(probe.late_ms));
  });
  const note = canary.running ? `The line is the median of the canary messages of ten seconds, the bars reach up to the worst, and the hatched part is how long the oldest was overdue. ${count(canary.sent)} sent, ${count(canary.arrived)} arrived, ${count(canary.overdue)} overdue, ${count(canary.missing)} missing, ${count(canary.twice)} twice.`
    : "The canary is not running: " + canary.problem;
  put($("late-note"), note);
}

function showRetries() {
  const apps = picture.retries;
  style($("retry-table"), "display", apps && apps.length ? "" : "none");
  put($("retry-note"), !apps ? "This daemon runs no retry service." : !apps.length ? "No message has failed since then." : apps.length > 12 ? `and ${apps.length - 12} more applications` : "");
  each($("retries"), (apps || []).slice(0, 12), body => { const row = make("tr", "", body); for (const kind of ["", "n", "n", "n"]) make("td", kind, row); return row; }, (row, app) => {
    [app.app, count(app.last_minute), count(app.retries), count(app.parked)].forEach((text, index) => put(row.children[index], text));
  });
}

/* gateways: those with the most to be taken first */
function showGateways() {
  const all = [...(picture.gateways || [])].sort((a, b) => b.waiting - a.waiting);
  attr($("gateways"), "hidden", !all.length);
  put($("gateway-note"), all.length > 12 ? `and ${all.length - 12} more gateways` : "");
  each($("gateway-list"), all.slice(0, 12), body => { const row = make("tr", "", body); for (const kind of ["", "n", "n", "n"]) make("td", kind, row); return row; }, (row, it) => {
    [it.gateway, count(it.waiting), count(it.due), count(it.channels)].forEach((text, index) => put(row.children[index], text));
  });
}

/* schedules: those that are due next first */
function showSchedules() {
  const of = picture.schedules || { number: 0, first: [] };
  attr($("schedules"), "hidden", !of.number);
  put($("schedule-turn"), of.leads ? "published by this daemon" : "published by another daemon, or by none");
  put($("schedule-note"), of.number > of.first.length ? `and ${count(of.number - of.first.length)} more schedules` : "");
  each($("schedule-list"), of.first, body => { const row = make("tr", "", body); for (const kind of ["", "", "n", "n"]) make("td", kind, row); return row; }, (row, it) => {
    const left = Date.parse(it.next) - now();
    const next = it.state !== "active" ? it.state : !it.next ? "never" : left < -1e4 ? ago(-left) + " late" : "in " + ago(left);
    [it.schedule, it.app, next, count(it.missed)].forEach((text, index) => put(row.children[index], text));
    attr(row.children[2], "title", it.next ? day(it.next) : null);
  });
}

/* recalls: the most first */
function showRecalls() {
  const all = [...(picture.recalls || [])].sort((a, b) => (b.pending || 0) - (a.pending || 0) || b.recalled - a.recalled);
  attr($("recalls"), "hidden", !all.length);
  put($("recall-note"), all.length > 12 ? `and ${all.length - 12} more applications` : "");
  each($("recalled"), all.slice(0, 12), body => { const row = make("tr", "", body); for (const kind of ["", ...Array(4).fill("n")]) make("td", kind, row); return row; }, (row, app) => {
    [app.app, count(app.pending), count(app.quota), count(app.over), count(app.recalled)].forEach((text, index) => put(row.children[index], text));
  });
}

/* kept messages */
const REASONS = {
  "nobody-bound": "no queue is bound for it", "not-passed-on": "a binding of the set is missing", "malformed": "its routing key is malformed", "foreign": "it came through another exchange",
  "attempts": "all attempts are used up", "age": "it is too old", "expired": "it has expired", "gave-up": "the application gave up", "unreadable": "it cannot be read",
};
const reports = {};
function showKept(which) {
  const node = $(which), waiting = picture[which], grown = picture[which + "_last_minute"];
  put(node.querySelector(".count"), count(waiting));
  put(node.querySelector(".new"), grown > 0 ? count(grown) + " new" : "");
  if (!node.open) return;
  const body = node.querySelector(".body"), report = reports[which];
  if (!body.firstChild) {
    make("p", "small quiet", body);
    const table = make("table", "list", body), head = make("tr", "", make("thead", "", table));
    for (const [text, kind] of [["for", ""], ["because", ""], ["messages", "n"], ["oldest", "n"]]) { const th = make("th", kind, head, text); th.scope = "col"; }
    make("tbody", "", table); make("p", "small", body); make("p", "small quiet", body);
  }
  const [note, table, command, rest] = body.children, groups = report ? report.groups : [];
  put(note, !report ? "Looking …" : report.failure !== null ? "The queue could not be read" + (report.examined ? `; this is from ${clock(report.at)}.` : ".") :
    !report.waiting && !report.unchecked.length ? "The queue is empty." :
    report.examined < report.waiting ? `The oldest ${count(report.examined)} of ${messages(report.waiting)}, at ${clock(report.at)}.` : `${messages(report.examined)}, at ${clock(report.at)}.`);
  style(table, "display", groups.length ? "" : "none");
  each(table.tBodies[0], groups, tbody => {
    const row = make("tr", "", tbody);
    make("td", "", row); const why = make("td", "", row); make("div", "", why); make("div", "sub", why); make("td", "n", row); make("td", "n", row);
    return row;
  }, (row, g) => {
    put(row.children[0], g.app === null ? "(no app key)" : g.app);
    put(row.children[1].children[0], (REASONS[g.reason] || g.reason) + (g.bound ? " – but a queue is bound now" : ""));
    put(row.children[1].children[1], g.detail === null ? "" : g.detail);
    put(row.children[2], count(g.count));
    put(row.children[3], g.oldest ? ago(now() - Date.parse(g.oldest)) : "–");
  });
  if (!command.firstChild) { make("span", "quiet", command, "To list, send on or discard them: "); make("code", "", command, "delayline held --help"); }
  style(command, "display", groups.length ? "" : "none");
  put(rest, report ? [report.failure === null ? "" : sentence(report.failure), report.others ? `${messages(report.others)} in smaller groups.` : "", ...report.unchecked].filter(Boolean).join(" ") : "");
}

function showFindings() {
  const found = picture.checkup;
  style($("doctor"), "display", found ? "" : "none");
  if (!found) return;
  put($("doctor-at"), found.at ? "checked at " + clock(found.at) : "");
  each($("findings"), found.findings, list => { const li = make("li", "", list); make("span", "sev", li); make("span", "", li); make("span", "advice", li); return li; }, (li, finding) => {
    attr(li, "data-severity", finding.severity); attr(li, "title", finding.code);
    put(li.children[0], finding.severity); put(li.children[1], finding.subject + ": " + finding.what); put(li.children[2], finding.advice);
  });
  put($("doctor-note"), [found.findings.length ? "" : "Nothing was found.", ...found.unchecked.map(text => "Not checked: " + text)].filter(Boolean).join(" "));
}

function showWords() {
  const p = picture, gone = goneSince !== null, stale = gone || !p.broker.reachable;
  attr(document.body, "data-state", gone ? "gone" : p.verdict.severity || "ok");
  attr(document.body, "data-stale", stale ? true : null);
  put($("headline"), gone ? "The daemon does not answer." : p.verdict.headline);
  const numbers = p.counted ? `Numbers below are from ${day(p.counted)}.` : "";
  put($("sub"), gone ? `Since ${clock(goneSince)}, ${ago(Date.now() - goneSince)}: ${goneWhy}. Messages do not need the daemon: they wait and move on in the broker. ${numbers}`
    : !p.broker.reachable ? (p.broker.since ? `Since ${day(p.broker.since)}, ${ago(now() - Date.parse(p.broker.since))}. ${sentence(p.broker.problem)} ${numbers}` : "")
    : summary());
  each($("more"), gone ? [] : p.verdict.more, list => make("li", "", list), (li, remark) => { attr(li, "data-severity", remark.severity); put(li, remark.text); });
  attr(document.body, "data-alone", p.verified.awaited);
  put($("where"), p.verified.awaited ? `vhost ${p.vhost}` : `set ${p.set} in vhost ${p.vhost}`);
  put($("broker"), gone ? "" : p.broker.reachable ? `● RabbitMQ ${p.broker.version || ""} answers since ${day(p.broker.since)}` : "○ no answer from " + p.broker.address);
  put($("verified"), gone ? "" : p.verified.ok === true ? `✓ set verified ${p.verified.bindings_compared ? "" : "except bindings "}${clock(p.verified.at)}` : p.verified.awaited ? "no set here" : p.verified.ok === false ? "▲ set differs" : "set not verified");
  showPlaces(gone);
  put($("total"), p.waiting === null ? "" : messages(p.waiting) + (p.waiting === 1 ? " waits" : " wait") + (p.stuck ? `, ${count(p.stuck)} stuck` : p.stuck === null ? ", stuck unknown" : ""));
  put($("entry"), p.rates.entry_per_s === null ? "–" : rate(p.rates.entry_per_s) + " /s");
  put($("dispatch"), p.rates.dispatch_per_s === null ? "–" : rate(p.rates.dispatch_per_s) + " /s");
  put($("retryq"), p.retry ? `${messages(p.retry)} failed and not taken by a retry service yet` : "");
  put($("unknown"), p.unchecked.length ? "Not checked: " + p.unchecked.join("; ") + "." : "");
  put($("facts"), `delayline ${p.version}, ${p.broker.address}${p.unit_ms === 1000 ? "" : `, with units of ${p.unit_ms} ms`}. Read-only: nothing can be changed from this page.`);
  showAge();
}
/* Where the set differs, and what was not checked. */
function showPlaces(gone) {
  const { problems, unchecked } = picture.verified, node = $("places"), said = [];
  if (problems.length) said.push(problems.length === 1 ? "1 place where the set differs" : problems.length + " places where the set differs");
  if (unchecked.length) said.push(unchecked.length === 1 ? "1 thing not checked" : unchecked.length + " things not checked");
  attr(node, "hidden", gone || !said.length);
  put(node.firstElementChild, said.join(", "));
  each(node.lastElementChild, problems.concat(unchecked.map(text => "Not checked: " + text)), list => make("li", "", list), (li, text) => put(li, text));
}
const sentence = text => text ? text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".") : "";
function summary() {
  const p = picture, minute = p.forecast[0];
  if (p.waiting === null || p.verified.awaited) return "";
  if (!p.waiting) return "No message waits.";
  return `${messages(p.waiting)} ${p.waiting === 1 ? "waits" : "wait"}` + (minute ? `, about ${count(minute.estimate)} of them due in the next minute.` : ".");
}
function showAge() {
  if (!heard) return;
  put($("age"), paused ? "paused" : goneSince !== null ? "no answer" : "seen " + ago(performance.now() - heard) + " ago");
}

function show() {
  if (!picture) {
    if (goneSince === null) return;
    attr(document.body, "data-state", "gone");
    put($("headline"), "The daemon does not answer.");
    put($("sub"), `Since ${clock(goneSince)}: ${goneWhy}.`);
    return;
  }
  showWords(); showLevels(); showLayouts(); showForecast(); showLateness(); showRetries(); showRecalls(); showGateways(); showSchedules(); showKept("unroutable"); showKept("parked"); showFindings();
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(PATIENCE) });
  if (!answer.ok) throw new Error(answer.status === 401 ? "it asks for the token again; reload the page" : "it answered with status " + answer.status);
  return { seen: await answer.json(), at: Date.parse(answer.headers.get("date")) };
}
async function turn() {
  clearTimeout(timer);
  if (!paused && !document.hidden) {
    try {
      const { seen, at } = await get("api/picture");
      /* The answer holds the time of the picture, and the daemon's current time. */
      picture = seen; heard = performance.now() - Math.max(0, (Number.isNaN(at) ? 0 : at - Date.parse(seen.at))); goneSince = null;
      for (const which of ["unroutable", "parked"]) if ($(which).open) {
        const { seen: report } = await get("api/" + which);
        if (report) reports[which] = report;
      }
    } catch (error) {
      if (goneSince === null) goneSince = Date.now();
      goneWhy = error.name === "TimeoutError" ? "it takes too long" : error instanceof TypeError ? "nothing listens there" : error.message;
    }
    show();
  }
  clearTimeout(timer);
  timer = setTimeout(turn, EVERY);
}
$("pause").addEventListener("click", () => {
  paused = !paused;
  attr($("pause"), "aria-pressed", String(paused)); put($("pause"), paused ? "Resume" : "Pause");
  attr(document.body, "data-paused", paused ? true : null);
  showAge(); if (!paused) turn();
});
for (const which of ["unroutable", "parked"]) $(which).addEventListener("toggle", () => { if (picture) showKept(which); turn(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) turn(); });
setInterval(showAge, 1000);
window.addEventListener("resize", () => { if (picture) showLateness(); });
turn();
