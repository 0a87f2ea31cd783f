// What is live at an instant, and the table of collectives.
const ROWS = 100, STORAGES = 40;

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function row(cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

function heading(cells) {
  const made = row(cells);
  made.className = "head";
  return made;
}

const head = (names) => heading(names.map(([name, words]) => element("th", name, { scope: "col", class: words ? "words" : "" })));
const swatch = (colour) => element("span", null, { class: "swatch", style: `background: ${colour}` });

const title = (run) => named(run).replace(/^the /, "");

function legend() {
  const kinds = data.memory_kinds.map((name, kind) => [name, KINDS[kind]]).filter((_, kind) => runs.some((run) => run.kinds[kind].some(Boolean)));
  for (const [list, entries] of [["legend", data.legend], ["memory-legend", kinds]]) {
    for (const [name, colour] of entries) {
      const entry = element("li", null);
      entry.append(swatch(colour), name);
      $(list).append(entry);
    }
  }
  runs.forEach((run, r) => {
    $(`streams-title-${r}`).textContent = `Streams, ${title(run)}: step ${duration(run.step_us)}, exposed ${duration(run.exposed_us)}`;
    $(`memory-title-${r}`).textContent = `Memory, ${title(run)}: peak ${size(run.peak_bytes)} (triangle) at ` +
      `${duration(run.at_us[run.peak_at])}, budget ${size(data.budget_bytes)} (dashed)`;
  });
}

function showLive(r, p) {
  const run = runs[r], { nodes, storages } = run;
  p = Math.min(Math.max(p, 0), run.order.length - 1);
  instant = { r, p };
  drawSoon();
  $("live-where").textContent = `${size(run.live[p])} live in ${named(run)} while ${nodes.name[run.order[p]]} runs ` +
    `(position ${count(p)} of ${count(run.order.length)}, at ${duration(run.at_us[p])})`;
  const kinds = data.memory_kinds.map((name, kind) => {
    const named = element("th", null, { scope: "row" });
    named.append(swatch(KINDS[kind]), name);
    return row([named, element("td", size(run.kinds[kind][p]))]);
  });
  $("live-kinds").replaceChildren(element("caption", "By kind"), ...kinds);
  const flying = new Set(run.flights.filter(([, first, last]) => first <= p && p <= last).map(([s]) => s));
  const live = run.first.flatMap((first, s) => (first <= p && p <= run.last[s] ? [s] : []));
  live.sort((a, b) => storages.bytes[b] - storages.bytes[a] || a - b);
  const listed = live.slice(0, STORAGES).map((s) => {
    const { bytes: of, kind, maker } = storages;
    const kindName = data.memory_kinds[flying.has(s) ? data.in_flight : kind[s]];
    return row([element("td", inModule(nodes, maker[s]), { class: "words" }), element("td", size(of[s])), element("td", kindName, { class: "words" }),
      element("td", `${count(run.first[s])} to ${count(run.last[s])}`)]);
  });
  const title = live.length > STORAGES ? `The ${STORAGES} largest of ${count(live.length)} storages` : `${live.length} storages`;
  $("live-storages").replaceChildren(element("caption", title),
    head([["allocated by", true], ["size", false], ["kind", true], ["live at positions", false]]), ...listed);
}

function causesTable() {
  const rows = data.causes.map(([words, us, n]) =>
    row([element("td", duration(us), { class: "loud" }), element("td", count(n)), element("td", words, { class: "words" })]));
  $("causes").replaceChildren(
    element("caption", rows.length ? "Exposed time of the scheduled order by cause" : "Nothing is exposed in the scheduled order."),
    ...(rows.length ? [head([["exposed", false], ["collectives", false], ["cause", true]])] : []), ...rows);
  data.causes.forEach(([words], at) => $("cause").append(element("option", words, { value: String(at) })));
}

// What each column is called, what it sorts by, what it shows, and whether that is words.
const group = (c) => data.groups[nodes.group[c.node]], module = (c) => data.modules[nodes.module[c.node]] ?? "", op = (c) => data.ops[nodes.op[c.node]];
const COLUMNS = [
  ["collective", (c) => nodes.name[c.node], (c) => nodes.name[c.node], "words"],
  ["exposed, scheduled", (c) => c.exposed_us, (c) => duration(c.exposed_us), ""],
  ["exposed, original", (c) => c.original_exposed_us, (c) => duration(c.original_exposed_us), ""],
  ["why", (c) => c.why, (c) => c.why, "words why"],
  ["hidden", (c) => c.hidden_us, (c) => duration(c.hidden_us), ""],
  ["launched", (c) => c.earlier, (c) => moved(c.earlier), ""],
  ["time", (c) => c.time_us, (c) => duration(c.time_us), ""],
  ["size", (c) => c.bytes, (c) => size(c.bytes), ""],
  ["group", group, group, "words"],
];
// What stands below a name: the operator, and the module where it is known.
const about = (c) => [op(c), module(c)].filter(Boolean).join(" in ");
const sentence = (words) => words.slice(0, 1).toUpperCase() + words.slice(1);
const moved = (by) => (by === 0 ? "as originally" : `${count(Math.abs(by))} ${by > 0 ? "earlier" : "later"}`);

const EXPOSED = 1, WHY = 3, GROUP = 8;

const table = { column: EXPOSED, descending: true, all: false, chosen: -1 };
const made = new Map();
function rowOfTable(c) {
  if (!made.has(c.node)) {
    made.set(c.node, row(COLUMNS.map(([, , cell, kind], at) => {
      const loud = at === EXPOSED && c.exposed_us > 1e-9 * endUs ? "loud" : "";
      const named = element("td", null, { class: `${kind} ${loud}`.trim() });
      if (at === 0) {
        named.append(element("button", cell(c), { type: "button", "data-node": String(c.node) }), element("small", about(c)));
      } else if (at === WHY) {
        const rest = element("details", null);
        rest.append(element("summary", c.why, { title: `${c.why}; ${c.more}` }), c.more);
        named.append(rest);
      } else if (at === GROUP) {
        named.append(swatch(COLOURS.groups[nodes.group[c.node]]), cell(c));
      } else {
        named.append(cell(c));
      }
      return named;
    })));
  }
  made.get(c.node).classList.toggle("chosen", c.node === table.chosen);
  return made.get(c.node);
}

function drawTable() {
  const text = $("filter").value.trim().toLowerCase(), cause = $("cause").value;
  const found = data.collectives.filter((c) => (cause === "" || c.causes.some(([at]) => at === Number(cause)))
    && [nodes.name[c.node], op(c), module(c), group(c), c.why, c.more].some((words) => words.toLowerCase().includes(text)));
  const by = COLUMNS[table.column][1], sign = table.descending ? -1 : 1;
  found.sort((a, b) => { const x = by(a), y = by(b); return sign * (x < y ? -1 : x > y ? 1 : 0); });
  const shown = table.all ? found : found.slice(0, ROWS);
  const header = heading(COLUMNS.map(([name, , , kind], at) => {
    const sorted = at !== table.column ? "none" : table.descending ? "descending" : "ascending";
    const cell = element("th", null, { scope: "col", "aria-sort": sorted, class: kind });
    const button = element("button", name, { type: "button", "data-column": String(at) });
    cell.append(button);
    return cell;
  }));
  $("collectives").replaceChildren(header, ...shown.map(rowOfTable));
  $("count").textContent = `${count(found.length)} of ${count(data.collectives.length)}`;
  $("more").hidden = shown.length === found.length;
}

// From when to when a collective, or what it stands for, runs; [Infinity, -Infinity]: not at all.
function span(run, c) {
  const ids = idsIn(run, c);
  return [Math.min(...ids.map((v) => run.start_us[v])), Math.max(...ids.map((v) => run.finish_us[v]))];
}

// Mark a collective in all timelines, from its launch to its waits, and say in words what it does there.
function choose(c) {
  table.chosen = c;
  runs.forEach((run, r) => {
    const ends = idsIn(run, c).flatMap((v) => {
      const y = 1 + run.nodes.group[v], launch = run.at_us[run.position[v]];
      return [[[launch, 0], [run.start_us[v], y]], [[run.start_us[v], y], [run.finish_us[v], y]],
        ...(run.waitsOf.get(v) || []).map((w) => link(run, v, w))];
    });
    chosenLinks[r] = ends;
  });
  drawSoon();
  const { exposed_us, original_exposed_us, why, more } = rowOf.get(c);
  const times = runs.map((run) => [run, ...span(run, c)]).filter(([, from]) => from < Infinity)
    .map(([run, from, to]) => `${duration(from)} to ${duration(to)} (${run.title})`).join(", ");
  $("selected").textContent = `${inModule(nodes, c)}: ran from ${times}; exposed ${duration(original_exposed_us)}, now ${duration(exposed_us)}. ` +
    `${sentence(why)}; ${more}.`;
  drawTable();
}

// The collective of the scheduled graph that is, or stands for, what is under a point of a timeline, or for which a stall
// there waits; -1: none.
function collectiveAt(run, us, y) {
  const slack = (view.to - view.from) / 300;
  const near = (spans) => spans.find((span) => span.start - slack <= us && us <= span.end + slack);
  const spans = run.rows[y];
  if (!spans) return -1;
  const found = y ? near([...spans.collective, ...spans.rewritten]) : near(spans.exposed);
  if (!found) return -1;
  const c = y ? found.node : run.nodes.collective[found.node];
  return run.graph === data.runs[SCHEDULED].graph ? c : standsIn.get(c) ?? -1;
}
