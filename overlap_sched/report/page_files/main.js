// Buttons, keys and clicks; then everything is drawn once.
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = dark ? "switch to light" : "switch to dark";
  drawSoon();
}

const wanted = window.matchMedia("(prefers-color-scheme: dark)");
wanted.addEventListener("change", () => setTheme(wanted.matches));
$("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
$("controls").addEventListener("click", (event) => { if (event.target.dataset.do) move(event.target.dataset.do); });
$("steps").addEventListener("click", ({ target }) => {
  if (target.dataset.peak) showLive(Number(target.dataset.peak), runs[Number(target.dataset.peak)].peak_at);
  if (target.dataset.step) showLive(instant.r, instant.p + Number(target.dataset.step));
});

const KEYS = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", 0: "all" };
$("plots").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in KEYS) move(KEYS[event.key]);
  else if (event.key === "p" || event.key === "P") showLive(instant.r, runs[instant.r].peak_at);
  else return;
  event.preventDefault();
});

$("filter").addEventListener("input", drawTable);
$("cause").addEventListener("change", drawTable);
$("more").addEventListener("click", () => { table.all = true; drawTable(); });
$("collectives").addEventListener("click", ({ target }) => {
  const { column, node } = target.dataset;
  if (column !== undefined) {
    table.descending = Number(column) === table.column ? !table.descending : COLUMNS[Number(column)][3] === "";
    table.column = Number(column);
    drawTable();
    $("collectives").querySelector(`[data-column="${column}"]`).focus();
  } else if (node !== undefined) {
    find(Number(node));
    $("collectives").querySelector(`[data-node="${node}"]`)?.focus();
  }
});
document.querySelector("#rewrites")?.addEventListener("click", ({ target }) => {
  if (target.dataset.node === undefined) return;
  find(Number(target.dataset.node));
  $("plots").scrollIntoView();
});

function find(c) {
  const spans = runs.map((run) => span(run, c)), from = Math.min(...spans.map(([start]) => start)), to = Math.max(...spans.map(([, end]) => end));
  choose(c);
  show(from - (to - from), to + (to - from));
}

runs.forEach((run, r) => {
  follow(streams[r], (us, y) => {
    const c = collectiveAt(run, us, y);
    if (c >= 0) choose(c);
  });
  follow(memories[r], (us) => showLive(r, positionAt(run, us)));
});
new ResizeObserver(drawSoon).observe(document.querySelector("main"));

legend();
causesTable();
drawTable();
showLive(instant.r, instant.p);
setTheme(wanted.matches);
show(0, endUs);
requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.ready = "true"; }));
