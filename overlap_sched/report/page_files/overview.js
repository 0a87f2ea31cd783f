// What of ten thousand nodes is drawn in a thousand pixels, and which of them is under a point.
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
