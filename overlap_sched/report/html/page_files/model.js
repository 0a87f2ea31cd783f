// The embedded data (overlap_sched/report/html/data.py), and what is counted from it once, when the page opens.
const data = JSON.parse(document.getElementById("data").textContent);
const nodes = data.nodes;
const endUs = Math.max(...data.runs.map((run) => run.step_us)) || 1;
const waitsOf = new Map();
nodes.collective.forEach((c, w) => { if (c >= 0) waitsOf.set(c, [...(waitsOf.get(c) || []), w]); });
const rowOf = new Map(data.collectives.map((row) => [row.node, row]));

// Rows of a timeline: 0 is the compute stream, with the stalls in it; then one per process group.
function spansOf(run) {
  const rows = [{ compute: [], exposed: [] }, ...data.groups.map(() => ({ collective: [] }))];
  for (const v of run.order) {
    const span = { node: v, start: run.start_us[v], end: run.finish_us[v] };
    if (span.end <= span.start) continue;
    const kind = nodes.kind[v];
    if (kind === "wait") rows[0].exposed.push(span);
    else if (kind === "collective") rows[1 + nodes.group[v]].collective.push(span);
    else rows[0].compute.push(span);
  }
  return rows;
}

// Bytes of each kind at each position: live ranges, less what collectives in flight hold, which is a kind of its own.
function bytesByKind(run) {
  const n = run.order.length;
  const kinds = data.memory_kinds.map(() => new Float64Array(n + 1));
  const add = (kind, first, last, bytes) => { kinds[kind][first] += bytes; kinds[kind][last + 1] -= bytes; };
  run.first.forEach((first, s) => add(data.storages.kind[s], first, run.last[s], data.storages.bytes[s]));
  for (const [s, from, to] of run.flights) {
    const first = Math.max(from, run.first[s]), last = Math.min(to, run.last[s]);
    if (first > last) continue;
    add(data.storages.kind[s], first, last, -data.storages.bytes[s]);
    add(data.in_flight, first, last, data.storages.bytes[s]);
  }
  for (const kind of kinds) for (let p = 1; p < n; p++) kind[p] += kind[p - 1];
  return kinds;
}

const runs = data.runs.map((run) => {
  const kinds = bytesByKind(run);
  const live = run.order.map((_, p) => kinds.reduce((sum, kind) => sum + kind[p], 0));
  const position = new Array(run.order.length);
  run.order.forEach((v, p) => { position[v] = p; });
  return { ...run, rows: spansOf(run), kinds, live, position };
});
