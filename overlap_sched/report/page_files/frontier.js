// Step against peak memory, where it was computed: the frontier as steps, the orders of this page as marks.
const SHOWN = 1.05; // up to this part of the lowest step at least: one percent of it is not to look like a cliff
const MARKS = [
  (c, x, y) => c.rect(x - 6, y - 6, 12, 12),
  (c, x, y) => c.arc(x, y, 7, 0, 2 * Math.PI),
  (c, x, y) => [[0, -9], [7, 0], [0, 9], [-7, 0]].forEach(([dx, dy]) => c.lineTo(x + dx, y + dy)),
];

function frontierPicture(points, others) {
  const all = [...points, ...others];
  const range = (values, shown = 1) => {
    const low = Math.min(...values), high = Math.max(...values, low * shown), margin = (high - low || high || 1) * 0.08;
    return [low - margin, high + margin];
  };
  const steps = range(all.map((point) => point.step_us), SHOWN), peaks = range(all.map((point) => point.peak_bytes));
  const [scale, stepUnit] = timeUnit(steps[1]);
  others.forEach(({ title }, k) => {
    const entry = element("li", null);
    entry.append(swatch(COLOURS.orders[k]), title);
    $("frontier-legend").append(entry);
  });
  newPicture("frontier-plot", 260, () => [...peaks, unitBytes, `peak (${bytesUnit}), simulated`], () => [...steps, scale, `step (${stepUnit})`],
    (c, { at, up }) => {
      const { ink } = theme(), corners = points.flatMap(({ peak_bytes, step_us }, k) => [[at(peak_bytes), up(step_us)],
        [at((points[k + 1] ?? points[k]).peak_bytes), up(step_us)]]);
      stroke(c, corners, { colour: ink, width: 2 });
      points.forEach(({ peak_bytes, step_us }) => { c.fillStyle = "#999999"; c.fillRect(at(peak_bytes) - 3, up(step_us) - 3, 6, 6); });
      others.forEach(({ peak_bytes, step_us }, k) => {
        c.beginPath();
        MARKS[k](c, at(peak_bytes), up(step_us));
        c.closePath();
        Object.assign(c, { fillStyle: COLOURS.orders[k], strokeStyle: "#FFFFFF", lineWidth: 1 });
        c.fill();
        c.stroke();
      });
    });
}

if (data.frontier.length) frontierPicture(data.frontier, data.runs);
