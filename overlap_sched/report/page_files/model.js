// The embedded data (overlap_sched/report/page_data.py), and what is counted from it once, when the page opens.
const data = JSON.parse(document.getElementById("data").textContent);
const SCHEDULED = 1; // the run that the tables are of
const nodes = data.graphs[data.runs[SCHEDULED].graph].nodes;
const endUs = Math.max(...data.runs.map((run) => run.step_us)) || 1;
const rowOf = new Map(data.collectives.map((row) => [row.node, row]));
// Of a collective of the original graph, the one of the scheduled graph that stands for it.
const standsIn = new Map(data.collectives.flatMap((row) => row.before.map((c) => [c, row.node])));

function waitsIn({ collective }) {
  const waits = new Map();
  collective.forEach((c, w) => { if (c >= 0) waits.set(c, [...(waits.get(c) || []), w]); });
  return waits;
}
const graphs = data.graphs.map((graph) => ({ ...graph, waitsOf: waitsIn(graph.nodes), marked: new Set(graph.marked) }));

// Rows of a timeline: 0 is the compute stream, with the stalls in it; then one per process group.
function spansOf(run) {
  const { nodes, marked } = graphs[run.graph];
  const rows = [{ compute: [], rewritten: [], exposed: [] }, ...data.groups.map(() => ({ collective: [], rewritten: [] }))];
  for (const v of run.order) {
    const span = { node: v, start: run.start_us[v], end: run.finish_us[v] };
    if (span.end <= span.start) continue;
    const kind = nodes.kind[v];
    if (kind === "wait") rows[0].exposed.push(span);
    else rows[kind === "collective" ? 1 + nodes.group[v] : 0][marked.has(v) ? "rewritten" : kind === "collective" ? kind : "compute"].push(span);
  }
  return rows;
}

// Bytes of each kind at each position: live ranges, less what collectives in flight hold, which is a kind of its own.
function bytesByKind(run) {
  const n = run.order.length, { storages } = graphs[run.graph];
  const kinds = data.memory_kinds.map(() => new Float64Array(n + 1));
  const add = (kind, first, last, bytes) => { kinds[kind][first] += bytes; kinds[kind][last + 1] -= bytes; };
  run.first.forEach((first, s) => add(storages.kind[s], first, run.last[s], storages.bytes[s]));
  for (const [s, from, to] of run.flights) {
    const first = Math.max(from, run.first[s]), last = Math.min(to, run.last[s]);
    if (first > last) continue;
    add(storages.kind[s], first, last, -storages.bytes[s]);
    add(data.in_flight, first, last, storages.bytes[s]);
  }
  for (const kind of kinds) for (let p = 1; p < n; p++) kind[p] += kind[p - 1];
  return kinds;
}

const runs = data.runs.map((run) => {
  const kinds = bytesByKind(run);
  const live = run.order.map((_, p) => kinds.reduce((sum, kind) => sum + kind[p], 0));
  const position = new Array(run.order.length);
  run.order.forEach((v, p) => { position[v] = p; });
  return { ...run, ...graphs[run.graph], rows: spansOf(run), kinds, live, position };
});

// A node's name, and the module that it is of where that is known.
const inModule = ({ name, module }, v) => (module[v] < 0 ? name[v] : `${name[v]} in ${data.modules[module[v]]}`);
// Of a collective of the scheduled graph, those of another run's graph that it stands for: itself, where they are one.
const idsIn = (run, c) => (run.graph === data.runs[SCHEDULED].graph ? [c] : rowOf.get(c).before);
const named = (run) => (["original", "scheduled"].includes(run.title) ? `the ${run.title} order` : run.title);
