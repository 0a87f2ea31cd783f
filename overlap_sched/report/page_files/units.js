// Quantities as people read them: the same texts as overlap_sched/report/units.py.
// Rounds as Python does: by the exact value, ties to even. Only an odd multiple of 2 ** -(digits + 1) is a tie.
function fixed(number, digits) {
  const up = number.toFixed(digits), tie = (number * 2 ** (digits + 1)) % 2 === 1;
  const text = tie && Number(up.at(-1)) % 2 ? (number - 0.5 / 10 ** digits).toFixed(digits) : up;
  const [whole, rest] = text.split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return rest === undefined ? grouped : `${grouped}.${rest}`;
}

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
