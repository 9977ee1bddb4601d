
/* scheduled messages: what the index of the daemon answers */
const RANGES = { hour: [3600e3, "minute", 60e3], day: [864e5, "hour", 3600e3], month: [30 * 864e5, "day", 864e5] };
const PAGE = 20;
const due = { apps: null, app: null, range: "day", skip: 0, text: "", list: null, slots: [], shown: null, problem: "", next: 0, turn: 0 };

async function question(path, parameters) {
  const answer = await fetch("api/scheduled/" + path + "?" + new URLSearchParams(parameters), { cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(PATIENCE) });
  const told = (answer.headers.get("content-type") || "").startsWith("application/json") ? await answer.json() : null;
  if (!answer.ok) throw Object.assign(new Error(told ? told.error : "there is no index"), { missing: !told });
  return told;
}
const filters = () => {
  const text = due.text.trim(), list = [["app", due.app]];
  if (text) list.push([text.includes("=") ? "header" : "id", text]);
  return list;
};

/* Asks for everything that is visible. What an earlier turn asked for may not be visible any more. */
async function renewScheduled() {
  if (due.next === Infinity || paused || document.hidden) return;
  clearTimeout(due.timer);
  due.next = 0;
  const turn = ++due.turn;
  try {
    const counts = await question("count", [["by", "app"]]);
    if (turn !== due.turn) return;
    due.apps = counts.apps; due.unchecked = counts.unchecked;
    if (due.app !== null && !due.apps.some(it => it.app === due.app)) due.app = null;
    if (due.app !== null) {
      const [length, by] = RANGES[due.range], until = new Date(now() + length).toISOString();
      const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
      const { slots } = await question("count", [...filters(), ["by", by], ["due_before", until], ["zone", zone]]);
      if (turn !== due.turn) return;
      const list = await question("list", [...filters(), ["skip", due.skip], ["limit", PAGE]]);
      if (turn !== due.turn) return;
      Object.assign(due, { slots, list });
    }
    due.problem = "";
  } catch (error) {
    if (turn !== due.turn) return;
    if (error.missing) due.next = Infinity;
    due.problem = error.message;
  }
  showScheduled();
  if (due.next !== Infinity) due.timer = setTimeout(renewScheduled, 5000);
}

function showScheduled() {
  const apps = due.apps || [];
  attr($("scheduled"), "hidden", !apps.length && !(due.unchecked || []).length);
  each($("scheduled-apps"), apps, body => {
    const row = make("tr", "", body), name = make("td", "", row), button = make("button", "link", name);
    button.type = "button";
    button.addEventListener("click", () => { Object.assign(due, { app: due.app === row.dataset.app ? null : row.dataset.app, skip: 0, text: "", list: null, shown: null, slots: [] }); $("scheduled-text").value = ""; showScheduled(); renewScheduled(); });
    for (const kind of ["n", "n", "n"]) make("td", kind, row);
    return row;
  }, (row, it) => {
    row.dataset.app = it.app;
    const button = row.children[0].firstChild;
    put(button, it.app); attr(button, "aria-expanded", String(it.app === due.app));
    [count(it.waiting), it.recalled + it.uncertain ? count(it.recalled + it.uncertain) : "", it.messages.length ? day(it.messages[0].due) : "–"].forEach((text, index) => put(row.children[index + 1], text));
  });
  put($("scheduled-note"), [due.problem ? sentence(due.problem) : "", ...(due.unchecked || []).map(text => "Not listed: " + sentence(text))].filter(Boolean).join(" "));
  attr($("scheduled-app"), "hidden", due.app === null);
  if (due.app === null) return;
  put($("scheduled-name"), due.app);
  for (const button of $("scheduled-ranges").children) attr(button, "aria-pressed", String(button.dataset.range === due.range));
  showHistogram();
  const list = due.list, rows = list ? list.messages : [];
  each($("scheduled-list"), rows, body => {
    const row = make("tr", "", body);
    make("td", "", row);
    const button = make("button", "link", make("td", "", row));
    button.type = "button";
    button.addEventListener("click", () => showMessage(row.message));
    make("td", "", row); make("td", "n", row);
    return row;
  }, (row, it) => {
    row.message = it;
    put(row.children[0], (it.due_latest ? "≈ " : "") + day(it.due));
    put(row.children[1].firstChild, it.id === null ? "(no id)" : it.id);
    put(row.children[2], it.state + (it.attempt ? `, retry ${it.attempt}` : "") + (it.copies > 1 ? `, ${it.copies} times` : ""));
    put(row.children[3], count(it.bytes));
  });
  const all = list ? due.skip + rows.length + list.more : 0;
  put($("scheduled-page"), !list ? "Looking …" : !all ? "No such message." : `${count(due.skip + 1)} to ${count(due.skip + rows.length)} of ${count(all)}`);
  attr($("scheduled-back"), "disabled", !due.skip);
  attr($("scheduled-on"), "disabled", !list || !list.more);
  attr($("scheduled-message"), "hidden", due.shown === null);
  put($("scheduled-message"), due.shown || "");
}

/* A bar for each minute, hour or day. */
function showHistogram() {
  const svg = $("due-chart"), W = svg.clientWidth || 560, H = 120, foot = 16;
  const [length, unit, width] = RANGES[due.range], begin = now(), bars = Math.round(length / width);
  const most = Math.max(1, ...due.slots.map(slot => slot.waiting + slot.recalled + slot.uncertain));
  attr(svg, "viewBox", `0 0 ${W} ${H}`);
  if (!svg.firstChild) for (let group = 0; group < 2; group++) draw("g", "", svg);
  const [shapes, words] = svg.children, wide = W / (bars + 1);
  each(shapes, due.slots, parent => { const bar = draw("rect", "bar", parent); draw("title", "", bar); return bar; }, (bar, slot) => {
    const all = slot.waiting + slot.recalled + slot.uncertain, high = Math.max(1, (H - foot - 14) * all / most);
    /* The first slot began before now. */
    attr(bar, "x", (Math.max(0, (Date.parse(slot.from) - begin) / width + 1) * wide).toFixed(1)); attr(bar, "width", Math.max(1, wide - 1).toFixed(1));
    attr(bar, "y", (H - foot - high).toFixed(1)); attr(bar, "height", high.toFixed(1));
    put(bar.firstChild, `${day(slot.from)}: ${messages(all)}`);
  });
  each(words, [["start", 0, "now"], ["end", W, "in 1 " + due.range], ["start", 0, `up to ${count(most)} a ${unit}`]], parent => draw("text", "", parent), (node, [anchor, x, text], index) => {
    attr(node, "x", x); attr(node, "y", index === 2 ? 10 : H - 2); attr(node, "text-anchor", anchor); put(node, text);
  });
  attr(svg, "aria-label", `Messages of ${due.app} by due time, by ${unit}, for the next ${due.range}; at most ${count(most)}`);
}

/* The contents come from the journal; only the beginning of the body. */
async function showMessage(message) {
  due.shown = "Looking …"; showScheduled();
  try {
    const at = Date.parse(message.due), before = new Date(at + 1).toISOString();
    const { messages: found } = await question("show", [["app", due.app], ["due_after", message.due], ["due_before", before], ["place", message.place], ["body_bytes", 4096]]);
    if (!found.length) throw new Error("the message was due, or is not in the journal any more");
    const { schema, schema_version, unchecked, copies, place, ...rest } = found[0];
    due.shown = JSON.stringify(rest, null, 2);
  } catch (error) { due.shown = sentence(error.message); }
  showScheduled();
}

for (const range of Object.keys(RANGES)) {
  const button = make("button", "link", $("scheduled-ranges"), "next " + range);
  button.type = "button"; button.dataset.range = range;
  button.addEventListener("click", () => { due.range = range; due.slots = []; showScheduled(); renewScheduled(); });
}
$("scheduled-search").addEventListener("submit", event => { event.preventDefault(); Object.assign(due, { text: $("scheduled-text").value, skip: 0, list: null, shown: null }); showScheduled(); renewScheduled(); });
const leaf = by => () => { due.skip = Math.max(0, due.skip + by); due.list = null; renewScheduled(); };
$("scheduled-back").addEventListener("click", leaf(-PAGE));
$("scheduled-on").addEventListener("click", leaf(PAGE));
document.addEventListener("visibilitychange", renewScheduled);
$("pause").addEventListener("click", renewScheduled);
renewScheduled();
