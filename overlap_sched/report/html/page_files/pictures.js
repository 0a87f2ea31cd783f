// Two timelines and two memory pictures on one time axis, drawn by Bokeh.
const COLOURS = data.colours, KINDS = COLOURS.memory;
const LEFT = 110, MAX_LINKS = 60, LETTERS = 17; // of a row's label
const SAMPLE = 2; // pixels of a memory picture that become one
const EDGED = 5; // pixels: what is wider has an edge
const HIGH = 0.8, LEAST = 0.2; // of a row; of a bar's height, for merged blocks
const FOOT = 0.35; // of the bar of a collective that was rewritten: the rest has the colour of its group
const P = Bokeh.Plotting;
const [unitUs, unit] = timeUnit(endUs);
const mostBytes = Math.max(data.budget_bytes, ...data.runs.map((run) => run.peak_bytes)) || 1;
const [unitBytes, bytesUnit] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([unit]) => mostBytes >= unit) ?? [1, "B"];
const time = new Bokeh.Range1d({ start: 0, end: endUs / unitUs });
const bytes = new Bokeh.Range1d({ start: 0, end: (1.08 * mostBytes) / unitBytes });
const figures = [], inked = []; // lines of the colour of text

function newFigure(height, y_range, label, x_range = time) {
  const tools = x_range === time
    ? [new Bokeh.PanTool({ dimensions: "width" }), new Bokeh.WheelZoomTool({ dimensions: "width", modifiers: { ctrl: true } })] : [];
  const figure = P.figure({ x_range, y_range, height, tools, sizing_mode: "stretch_width", toolbar_location: null,
    min_border_left: LEFT, min_border_right: 12, x_axis_label: null, y_axis_label: label, output_backend: "canvas" });
  if (tools.length) figure.toolbar.active_scroll = tools[1];
  figures.push(figure);
  return figure;
}

const source = (...names) => new Bokeh.ColumnDataSource({ data: Object.fromEntries(names.map((name) => [name, []])) });

function streamsFigure(run) {
  const rows = run.rows.length, height = rows > 8 ? 16 : 26;
  const figure = newFigure(height * rows + 40, new Bokeh.Range1d({ start: rows - 0.4, end: -0.6 }), null);
  const names = ["compute", ...data.groups.map((name) => name.replace(/ ranks\)$/, ")"))].map((name) => (name.length > LETTERS ? `${name.slice(0, LETTERS - 1)}…` : name));
  figure.yaxis.ticker = new Bokeh.FixedTicker({ ticks: names.map((_, row) => row) });
  figure.yaxis.major_label_overrides = new Map(names.map((name, row) => [row, name]));
  figure.ygrid.visible = false;
  const spans = source("top", "bottom", "left", "right", "colour", "edge", "what", "times");
  const bars = figure.quad({ top: { field: "top" }, bottom: { field: "bottom" }, left: { field: "left" }, right: { field: "right" },
    fill_color: { field: "colour" }, line_alpha: { field: "edge" }, line_width: 0.5, source: spans });
  const links = source("x0", "y0", "x1", "y1"), chosen = source("x0", "y0", "x1", "y1");
  const ends = { x0: { field: "x0" }, y0: { field: "y0" }, x1: { field: "x1" }, y1: { field: "y1" } };
  figure.segment({ ...ends, line_color: "#777777", line_width: 1, source: links });
  figure.segment({ ...ends, line_color: "#AA00CC", line_width: 3, source: chosen });
  figure.add_tools(new Bokeh.HoverTool({ renderers: [bars], tooltips: [["", "@what"], ["", "@times"]] }));
  return { figure, bars, spans, links, chosen };
}

function memoryFigure(run) {
  const figure = newFigure(190, bytes, `${bytesUnit} live`);
  const tops = data.memory_kinds.map((_, kind) => `top${kind}`);
  const stack = source("x", "zero", ...tops);
  const areas = tops.map((top, kind) => figure.varea_step({ x: { field: "x" }, y1: { field: kind ? tops[kind - 1] : "zero" },
    y2: { field: top }, step_mode: "after", fill_color: KINDS[kind], fill_alpha: 0.9, source: stack }));
  const budget = new Bokeh.Span({ location: data.budget_bytes / unitBytes, dimension: "width", line_dash: "dashed", line_width: 2 });
  const here = new Bokeh.Span({ location: 0, dimension: "height", line_color: "#AA00CC", line_width: 2, visible: false });
  figure.add_layout(budget);
  figure.add_layout(here);
  figure.scatter({ x: [run.at_us[run.peak_at] / unitUs], y: [run.peak_bytes / unitBytes], marker: "inverted_triangle", size: 12,
    fill_color: COLOURS.exposed, line_color: "#FFFFFF" });
  return { figure, areas, stack, budget, here };
}

const streams = runs.map(streamsFigure), memories = runs.map(memoryFigure);
memories[memories.length - 1].figure.xaxis.axis_label = `time (${unit}), simulated`;

function words({ nodes }, kind, block) {
  if (block.count > 1) return `${count(block.count)} nodes (${kind}), ${fixed(100 * block.share, 0)} % of the time here`;
  if (kind === "exposed") return `exposed: stalls at ${nodes.name[block.node]}`;
  return `${inModule(nodes, block.node)} (${data.ops[nodes.op[block.node]]})`;
}

// A wait's end of its link: when compute has both reached it and may go on.
function link(run, c, w) {
  return [run.finish_us[c], 1 + run.nodes.group[c], run.finish_us[w], 0];
}

function segments(ends) {
  const column = (at, scale) => ends.map((end) => end[at] / scale);
  return { x0: column(0, unitUs), y0: column(1, 1), x1: column(2, unitUs), y1: column(3, 1) };
}

function drawStreams(run, { spans, links }, from, to, pixel) {
  const columns = { top: [], bottom: [], left: [], right: [], colour: [], edge: [], what: [], times: [] };
  const inView = [];
  run.rows.forEach((row, y) => {
    for (const [kind, of] of Object.entries(row)) {
      for (const block of blocks(of, from, to, pixel)) {
        const high = HIGH * Math.max(block.share, LEAST); // stalls hang from the top of their row, all else stands on it
        const bar = (colour, share) => {
          columns.top.push(kind === "exposed" ? y - HIGH / 2 : y + HIGH / 2 - share * high);
          columns.bottom.push(kind === "exposed" ? y - HIGH / 2 + high : y + HIGH / 2);
          columns.left.push(block.start / unitUs);
          columns.right.push(block.right / unitUs);
          columns.colour.push(colour);
          columns.edge.push(block.end - block.start > EDGED * pixel ? 1 : 0);
          columns.what.push(words(run, kind, block));
          columns.times.push(`${duration(block.end - block.start)} from ${duration(block.start)}`);
        };
        bar(y ? COLOURS.groups[y - 1] : COLOURS[kind], 1);
        if (y && kind === "rewritten") bar(COLOURS.rewritten, FOOT);
        if (y) inView.push(block);
      }
    }
  });
  spans.data = columns;
  const few = inView.length <= MAX_LINKS && inView.every((block) => block.count === 1);
  links.data = segments(few ? inView.flatMap(({ node }) => (run.waitsOf.get(node) || []).map((w) => link(run, node, w))) : []);
}

function drawMemory(run, { areas, stack }, from, to, pixel) {
  const at = samples(run, from, to, SAMPLE * pixel), end = Math.min(to, run.step_us);
  const columns = { x: [...at.map((p) => run.at_us[p] / unitUs), end / unitUs], zero: at.map(() => 0).concat(0) };
  const sums = at.map(() => 0);
  run.kinds.forEach((kind, k) => {
    at.forEach((p, i) => { sums[i] += kind[p] / unitBytes; });
    columns[`top${k}`] = [...sums, sums[sums.length - 1] || 0];
  });
  areas.forEach((area, k) => { area.visible = at.some((p) => run.kinds[k][p] > 0); });
  stack.data = columns;
}

// Fill in what is seen between two times; the time axis itself is moved by whoever calls.
let drawn = [NaN, NaN];
function draw(from, to) {
  drawn = [from, to];
  const pixel = (to - from) / Math.max(document.getElementById("plots").clientWidth - LEFT, 200);
  runs.forEach((run, r) => {
    drawStreams(run, streams[r], from, to, pixel);
    drawMemory(run, memories[r], from, to, pixel);
  });
  document.getElementById("window").textContent = `${duration(Math.max(from, 0))} to ${duration(to)} of ${duration(endUs)}`;
}

let drawing = false;
function drawSoon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const from = time.start * unitUs, to = time.end * unitUs;
    if (from !== drawn[0] || to !== drawn[1]) draw(from, to);
  });
}

function show(from, to) {
  const width = Math.min(Math.max(to - from, endUs * 1e-7), endUs);
  const start = Math.min(Math.max(from, 0), endUs - width) / unitUs, end = start + width / unitUs;
  draw(start * unitUs, end * unitUs);
  time.setv({ start, end });
}

const MOVES = {
  in: (from, width) => show(from + width / 4, from + (3 * width) / 4),
  out: (from, width) => show(from - width / 2, from + (3 * width) / 2),
  left: (from, width) => show(from - width / 4, from + (3 * width) / 4),
  right: (from, width) => show(from + width / 4, from + (5 * width) / 4),
  all: () => show(0, endUs),
};
const move = (name) => MOVES[name](time.start * unitUs, (time.end - time.start) * unitUs);

function paint() {
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const [ink, paper, soft, line] = ["--ink", "--paper", "--soft", "--line"].map(colour);
  for (const figure of figures) {
    figure.setv({ background_fill_color: soft, border_fill_color: paper, outline_line_color: null });
    for (const axis of [figure.xaxis, figure.yaxis]) {
      axis.axis_label_text_color = axis.major_label_text_color = ink;
      axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = line;
      axis.axis_label_text_font_style = "normal";
    }
    figure.xgrid.grid_line_color = figure.ygrid.grid_line_color = line;
  }
  frontier?.legend.setv({ background_fill_color: paper, border_line_color: null, label_text_color: ink });
  for (const { bars } of streams) bars.glyph.line_color = paper;
  for (const line of [...memories.map(({ budget }) => budget), ...inked]) line.line_color = ink;
}
