// Timelines and memory on one time axis, each on a canvas of its own; nothing here knows what a click means.
const $ = (id) => document.getElementById(id);
const COLOURS = data.colours, KINDS = COLOURS.memory;
const MAX_LINKS = 60;
const SAMPLE = 2; // pixels of a memory picture that become one
const EDGED = 5; // pixels: what is wider has an edge
const HIGH = 0.8, LEAST = 0.2; // of a row; of a bar's height, for merged blocks
const FOOT = 0.35; // of the bar of a collective that was rewritten: the rest has the colour of its group
const CHOSEN = "#AA00CC";
const [unitUs, unit] = timeUnit(endUs);
const mostBytes = Math.max(data.budget_bytes, ...data.runs.map((run) => run.peak_bytes)) || 1;
const [unitBytes, bytesUnit] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([unit]) => mostBytes >= unit) ?? [1, "B"];
const view = { from: 0, to: endUs }; // what is seen, in microseconds
const pictures = [];

// A picture: `height` of its inside, `x` and `y` say [lowest, highest, unit, words] now, `draw` fills the inside.
function newPicture(id, height, x, y, draw) {
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", id.replace(/-\d+$/, ""));
  $(id).append(canvas);
  const made = { canvas, height, x, y, draw, spots: [], box: null };
  pictures.push(made);
  return made;
}

// Round numbers between two, at most so many, and the digits that they need.
function ticks(low, high, most) {
  const least = (high - low) / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= least * 0.999);
  const first = Math.ceil(low / step - 1e-9), count = Math.floor(high / step + 1e-9) - first + 1;
  return [Array.from({ length: Math.max(count, 0) }, (_, k) => (first + k) * step), Math.max(0, -Math.floor(Math.log10(step) + 1e-9))];
}

const theme = () => Object.fromEntries(["ink", "paper", "soft", "line"].map((name) =>
  [name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()]));

function paint(picture) {
  const { canvas, height, x, y, draw } = picture, wide = canvas.parentElement.clientWidth, dots = window.devicePixelRatio || 1;
  const [xLow, xHigh, xUnit, xWords] = x(), [yLow, yHigh, yUnit, yWords] = y();
  const box = { left: wide < 600 ? 72 : 110, top: 6, right: wide - 10, bottom: 6 + height }, below = xWords ? 40 : 24;
  canvas.width = wide * dots;
  canvas.height = (box.bottom + below) * dots;
  canvas.style.height = `${box.bottom + below}px`;
  const c = canvas.getContext("2d"), { ink, soft, line } = theme();
  const at = (value) => box.left + ((value - xLow) / (xHigh - xLow)) * (box.right - box.left);
  const up = (value) => box.bottom - ((value - yLow) / (yHigh - yLow)) * (box.bottom - box.top);
  c.scale(dots, dots);
  c.font = "12px system-ui, sans-serif";
  c.fillStyle = soft;
  c.fillRect(box.left, box.top, box.right - box.left, height);
  c.fillStyle = ink;
  c.strokeStyle = line;
  c.lineWidth = 1;
  const [across, digits] = ticks(xLow / xUnit, xHigh / xUnit, (box.right - box.left) / 80);
  c.textAlign = "center";
  for (const value of across) {
    stroke(c, [[at(value * xUnit), box.top], [at(value * xUnit), box.bottom + 4]]);
    c.fillText(fixed(value, digits), at(value * xUnit), box.bottom + 16);
  }
  if (xWords) c.fillText(xWords, (box.left + box.right) / 2, box.bottom + 33);
  c.textAlign = "right";
  if (Array.isArray(yUnit)) {
    yUnit.forEach((name, row) => c.fillText(shortened(c, name, box.left - 8), box.left - 6, up(row) + 4)); // rows by name
  } else {
    const [levels, places] = ticks(yLow / yUnit, yHigh / yUnit, height / 36);
    for (const value of levels) {
      stroke(c, [[box.left - 4, up(value * yUnit)], [box.right, up(value * yUnit)]]);
      c.fillText(fixed(value, places), box.left - 8, up(value * yUnit) + 4);
    }
    c.save();
    c.translate(11, (box.top + box.bottom) / 2);
    c.rotate(-Math.PI / 2);
    c.textAlign = "center";
    c.fillText(yWords, 0, 0);
    c.restore();
  }
  c.save();
  c.beginPath();
  c.rect(box.left, box.top, box.right - box.left, height);
  c.clip();
  Object.assign(picture, { box, spots: [] });
  draw(c, { at, up, box, pixel: (xHigh - xLow) / Math.max(box.right - box.left, 1), spots: picture.spots });
  c.restore();
}

function shortened(c, name, room) {
  let text = name;
  while (text.length > 2 && c.measureText(text).width > room) text = `${text.slice(0, -2)}…`;
  return text;
}

function stroke(c, points, { colour = c.strokeStyle, width = 1, dash = [] } = {}) {
  c.save();
  Object.assign(c, { strokeStyle: colour, lineWidth: width });
  c.setLineDash(dash);
  c.beginPath();
  points.forEach(([x, y], k) => (k ? c.lineTo(x, y) : c.moveTo(x, y)));
  c.stroke();
  c.restore();
}

function words({ nodes }, kind, block) {
  if (block.count > 1) return `${count(block.count)} nodes (${kind}), ${fixed(100 * block.share, 0)} % of the time here`;
  if (kind === "exposed") return `exposed: stalls at ${nodes.name[block.node]}`;
  return `${inModule(nodes, block.node)} (${data.ops[nodes.op[block.node]]})`;
}

// A wait's end of its link: when compute has both reached it and may go on.
const link = (run, c, w) => [[run.finish_us[c], 1 + run.nodes.group[c]], [run.finish_us[w], 0]];

const timeAxis = (words) => () => [view.from, view.to, unitUs, words];
const chosenLinks = runs.map(() => []);

function streamsPicture(run, r) {
  const rows = run.rows.length, high = rows > 8 ? 16 : 26;
  const names = ["compute", ...data.groups.map((name) => name.replace(/ ranks\)$/, ")"))];
  return newPicture(`streams-${r}`, high * (rows + 0.2), timeAxis(""), () => [rows - 0.4, -0.6, names, ""], (c, { at, up, pixel, spots }) => {
    const inView = [], { paper } = theme(), places = (ends) => ends.map(([us, y]) => [at(us), up(y)]);
    run.rows.forEach((row, y) => {
      for (const [kind, of] of Object.entries(row)) {
        for (const block of blocks(of, view.from, view.to, pixel)) {
          const share = HIGH * Math.max(block.share, LEAST); // stalls hang from the top of their row, all else stands on it
          const top = kind === "exposed" ? up(y - HIGH / 2) : up(y + HIGH / 2 - share), tall = up(share) - up(0);
          const left = at(block.start), wide = at(block.right) - left;
          c.fillStyle = y ? COLOURS.groups[y - 1] : COLOURS[kind];
          c.fillRect(left, top, wide, tall);
          if (y && kind === "rewritten") {
            c.fillStyle = COLOURS.rewritten;
            c.fillRect(left, top + tall * (1 - FOOT), wide, tall * FOOT);
          }
          if (block.end - block.start > EDGED * pixel) {
            Object.assign(c, { strokeStyle: paper, lineWidth: 0.5 });
            c.strokeRect(left, top, wide, tall);
          }
          spots.push({ left, right: left + wide, top, bottom: top + tall,
            words: [words(run, kind, block), `${duration(block.end - block.start)} from ${duration(block.start)}`] });
          if (y) inView.push(block);
        }
      }
    });
    if (inView.length <= MAX_LINKS && inView.every((block) => block.count === 1)) {
      for (const { node } of inView) for (const w of run.waitsOf.get(node) || []) stroke(c, places(link(run, node, w)), { colour: "#777777" });
    }
    for (const ends of chosenLinks[r]) stroke(c, places(ends), { colour: CHOSEN, width: 3 });
  });
}

function memoryPicture(run, r) {
  const last = r === runs.length - 1;
  const y = () => [0, 1.08 * mostBytes, unitBytes, `${bytesUnit} live`];
  return newPicture(`memory-${r}`, 150, timeAxis(last ? `time (${unit}), simulated` : ""), y, (c, { at, up, box, pixel }) => {
    const found = samples(run, view.from, view.to, SAMPLE * pixel), end = Math.min(view.to, run.step_us), { ink } = theme();
    const edges = [...found.map((p) => run.at_us[p]), end].map(at);
    let below = found.map(() => 0);
    run.kinds.forEach((kind, k) => {
      const above = found.map((p, i) => below[i] + kind[p]);
      if (above.some((value, i) => value > below[i])) {
        const stairs = (values) => values.flatMap((value, i) => [[edges[i], up(value)], [edges[i + 1], up(value)]]);
        c.beginPath();
        for (const [x, height] of [...stairs(above), ...stairs(below).reverse()]) c.lineTo(x, height);
        c.fillStyle = KINDS[k];
        c.fill();
      }
      below = above;
    });
    stroke(c, [[box.left, up(data.budget_bytes)], [box.right, up(data.budget_bytes)]], { colour: ink, width: 2, dash: [6, 4] });
    const x = at(run.at_us[run.peak_at]), top = up(run.peak_bytes);
    c.beginPath();
    for (const [dx, dy] of [[-6, -10], [6, -10], [0, 1]]) c.lineTo(x + dx, top + dy);
    c.closePath();
    Object.assign(c, { fillStyle: COLOURS.exposed, strokeStyle: "#FFFFFF", lineWidth: 1 });
    c.fill();
    c.stroke();
    if (instant.r === r) {
      const here = at(run.at_us[instant.p]);
      stroke(c, [[here, box.top], [here, box.bottom]], { colour: CHOSEN, width: 2 });
    }
  });
}

let instant = { r: SCHEDULED, p: runs[SCHEDULED].peak_at };
const streams = runs.map(streamsPicture), memories = runs.map(memoryPicture);

let drawing = false;
function drawSoon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    pictures.forEach(paint);
  });
}

function show(from, to) {
  const width = Math.min(Math.max(to - from, endUs * 1e-7), endUs);
  view.from = Math.min(Math.max(from, 0), endUs - width);
  view.to = view.from + width;
  $("window").textContent = `${duration(view.from)} to ${duration(view.to)} of ${duration(endUs)}`;
  drawSoon();
}

const MOVES = {
  in: (from, width) => show(from + width / 4, from + (3 * width) / 4),
  out: (from, width) => show(from - width / 2, from + (3 * width) / 2),
  left: (from, width) => show(from - width / 4, from + (3 * width) / 4),
  right: (from, width) => show(from + width / 4, from + (5 * width) / 4),
  all: () => show(0, endUs),
};
const move = (name) => MOVES[name](view.from, view.to - view.from);

// The mouse on a picture of the time axis: drag to move, Ctrl + wheel to zoom, a click for `tap(us, row)`, and what is under it.
const CLICK = 4; // pixels: less is no drag
function follow(picture, tap) {
  const { canvas } = picture, perPixel = () => (view.to - view.from) / Math.max(picture.box.right - picture.box.left, 1);
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.offsetX, from: view.from, to: view.to };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", ({ offsetX, offsetY, clientX, clientY }) => {
    if (held && Math.abs(offsetX - held.x) >= CLICK) {
      const by = (held.x - offsetX) * perPixel();
      show(held.from + by, held.to + by);
    }
    const spot = picture.spots.findLast(({ left, right, top, bottom }) =>
      left - 1 <= offsetX && offsetX <= right + 1 && top <= offsetY && offsetY <= bottom);
    $("tip").hidden = !spot || held !== null;
    if (spot) {
      $("tip").textContent = spot.words.join("\n");
      Object.assign($("tip").style, { left: `${Math.min(clientX + 12, window.innerWidth - 260)}px`, top: `${clientY + 16}px` });
    }
  });
  canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
  canvas.addEventListener("pointerup", ({ offsetX, offsetY }) => {
    const { box } = picture;
    if (held && Math.abs(offsetX - held.x) < CLICK && offsetX >= box.left) {
      const [first, last] = picture.y(); // rows count downwards
      tap(view.from + (offsetX - box.left) * perPixel(), Math.round(last + ((offsetY - box.top) / (box.bottom - box.top)) * (first - last)));
    }
    held = null;
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const here = view.from + (event.offsetX - picture.box.left) * perPixel(), by = Math.exp(event.deltaY / 600);
    show(here + (view.from - here) * by, here + (view.to - here) * by);
  }, { passive: false });
}
