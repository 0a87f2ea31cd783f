// Step against peak memory, where it was computed: the frontier as steps, the orders of this page as marks.
const MARKS = ["square", "circle", "diamond"];
const SHOWN = 1.05; // up to this part of the lowest step at least: one percent of it is not to look like a cliff

function frontierFigure({ points, others }) {
  const all = [...points, ...others], peaks = all.map((point) => point.peak_bytes), steps = all.map((point) => point.step_us);
  const [scale, stepUnit] = timeUnit(Math.max(...steps));
  const range = (values, per, shown = 1) => {
    const low = Math.min(...values), high = Math.max(...values, low * shown), margin = (high - low || high || 1) * 0.08;
    return new Bokeh.Range1d({ start: (low - margin) / per, end: (high + margin) / per });
  };
  const figure = newFigure(290, range(steps, scale, SHOWN), `step (${stepUnit})`, range(peaks, unitBytes));
  figure.xaxis.axis_label = `peak (${bytesUnit}), simulated`;
  const at = (list, key, per) => list.map((point) => point[key] / per);
  inked.push(figure.step({ x: at(points, "peak_bytes", unitBytes), y: at(points, "step_us", scale), mode: "after", line_width: 2 }).glyph);
  figure.scatter({ x: at(points, "peak_bytes", unitBytes), y: at(points, "step_us", scale), size: 6, fill_color: "#999999", line_color: "#999999" });
  const items = others.map((point, k) => {
    const mark = figure.scatter({ x: at([point], "peak_bytes", unitBytes), y: at([point], "step_us", scale), marker: MARKS[k], size: 13, fill_color: COLOURS.orders[k],
      line_color: "#FFFFFF" });
    return new Bokeh.LegendItem({ label: { value: point.name }, renderers: [mark] });
  });
  const legend = new Bokeh.Legend({ items, orientation: "horizontal", label_text_font_size: "0.85rem", margin: 0 });
  figure.add_layout(legend, "above"); // not over the points
  return { figure, legend };
}

const frontier = data.frontier && frontierFigure(data.frontier);
