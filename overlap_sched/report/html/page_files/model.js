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

// The number of entries of an ascending list for which the value is at most `limit`.
function countUpTo(list, limit, value) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (value(list[middle]) <= limit) low = middle + 1; else high = middle;
  }
  return low;
}

// Spans between two times. Neighbours narrower than a pixel become one block of a few pixels, which says how many they are
// and what share of its time they fill; nothing is left out, and nothing is drawn narrower than a pixel.
const BLOCK = 3; // pixels
function blocks(spans, from, to, pixel) {
  const found = [];
  for (let i = countUpTo(spans, from, (span) => span.end); i < spans.length && spans[i].start < to; i++) {
    const { node, start, end } = spans[i], last = found[found.length - 1], thin = end - start < pixel;
    if (last && last.thin && thin && start < last.end + pixel && end - last.start < BLOCK * pixel) {
      Object.assign(last, { end, count: last.count + 1, busy: last.busy + end - start });
    } else {
      found.push({ node, start, end, count: 1, busy: end - start, thin });
    }
  }
  for (const block of found) {
    block.share = block.count > 1 ? block.busy / Math.max(block.end - block.start, pixel) : 1;
    block.right = Math.max(block.end, block.start + pixel);
  }
  return found;
}

// Positions to draw between two times: of each `width` of time the one with the most live, and the last.
function samples(run, from, to, width) {
  const found = [], at = run.at_us, n = at.length;
  let p = Math.max(countUpTo(at, from, (us) => us) - 1, 0);
  while (p < n && at[p] <= to) {
    const end = at[p] + width;
    let most = p;
    for (; p < n && at[p] < end; p++) if (run.live[p] > run.live[most]) most = p;
    found.push(most);
    if (p - 1 > most) found.push(p - 1);
  }
  return found;
}

// Of all positions that the compute stream reaches at that time, the one with the most live; of equals the last.
function positionAt(run, us) {
  const last = Math.max(countUpTo(run.at_us, us, (at) => at) - 1, 0);
  let most = last;
  for (let p = last; p >= 0 && run.at_us[p] === run.at_us[last]; p--) if (run.live[p] > run.live[most]) most = p;
  return most;
}
