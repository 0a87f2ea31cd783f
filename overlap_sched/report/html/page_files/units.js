// Quantities as people read them: the same texts as overlap_sched/report/units.py.
const DIGITS = [0, 1, 2, 3].map((digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits, roundingMode: "halfEven" }));
const fixed = (number, digits) => DIGITS[digits].format(number);
const count = (number) => fixed(number, 0);

function timeUnit(us) {
  if (us > 0 && us < 0.05) return [1e-3, "ns"];
  if (us < 1e3) return [1, "us"];
  return us < 1e7 ? [1e3, "ms"] : [1e6, "s"];
}

function duration(us) {
  const [scale, name] = timeUnit(us);
  return `${fixed(us / scale, name === "ns" || name === "us" || (us >= 1e5 && name === "ms") ? 1 : 2)} ${name}`;
}

function size(bytes) {
  if (bytes < 2 ** 10) return `${bytes} B`;
  if (bytes < 2 ** 20) return `${fixed(bytes / 2 ** 10, 1)} KiB`;
  if (bytes < 2 ** 30) return `${fixed(bytes / 2 ** 20, 1)} MiB`;
  return `${fixed(bytes / 2 ** 30, 3)} GiB`;
}
