// Tables sort, methods hide, commands copy, and plots say their values: by pointer, by touch and by keyboard.
"use strict";
const announce = document.getElementById("announce");
const tip = document.getElementById("tip");

// Numbers sort by their value, words by the alphabet, empty cells are always last.
function keyOf(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  const text = cell.textContent.trim();
  return text === "–" || text === "" ? null : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const numeric = head.classList.contains("number");
    const first = numeric ? "descending" : "ascending";
    const second = numeric ? "ascending" : "descending";
    const order = head.getAttribute("aria-sort") === first ? second : first;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...table.tBodies[0].rows].sort((x, y) => {
      const a = keyOf(x, column), b = keyOf(y, column);
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * compare(a, b);
    });
    table.tBodies[0].append(...rows);
    announce.textContent = `${table.caption.textContent}: sorted by ${head.textContent.trim()}, ${order}`;
  }));
}

// A method that is switched off leaves figures and tables alike.
const off = new Set();
for (const button of document.querySelectorAll(".toggle")) {
  button.addEventListener("click", () => {
    const method = button.dataset.toggles, shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    if (shown) off.delete(method); else off.add(method);
    for (const part of document.querySelectorAll(`[data-method="${method}"]`)) part.classList.toggle("off", !shown);
    announce.textContent = `${button.textContent.trim()} ${shown ? "shown" : "hidden"}`;
  });
}

// Commands break between words only, not after a hyphen.
for (const code of document.querySelectorAll(".command code")) {
  const words = code.textContent.split(" ").map((word) => Object.assign(document.createElement("span"), { textContent: word }));
  code.replaceChildren(...words.flatMap((word, place) => (place ? [" ", word] : [word])));
}

// Commands are copied by the clipboard where a page may use it, else as of old.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const done = await copy(button.parentElement.querySelector("code").textContent);
    button.textContent = done ? "Copied" : "Select it";
    announce.textContent = done ? "Command copied" : "The command could not be copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

// Plots: the nearest value, within reach of the pointer; with arrow keys one after the other.
const REACH = 24;  // pixels
const spot = Object.assign(document.createElement("span"), { className: "spot", hidden: true });

for (const plot of document.querySelectorAll(".plot[data-points]")) {
  const points = JSON.parse(plot.dataset.points);
  const svg = plot.querySelector("svg");
  let at = -1;
  const shown = () => points.filter((point) => point[3] === null || !off.has(String(point[3])));
  const scale = () => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;

  function show(point) {
    const box = svg.getBoundingClientRect(), s = scale();
    plot.append(spot);
    spot.style.left = `${point[0] * s}px`;
    spot.style.top = `${point[1] * s}px`;
    spot.hidden = tip.hidden = false;
    tip.textContent = point[2];
    const x = box.left + point[0] * s, room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${scrollX + Math.max(8, Math.min(x - tip.offsetWidth / 2, room))}px`;
    tip.style.top = `${scrollY + box.top + point[1] * s - tip.offsetHeight - 12}px`;
  }

  function hide() { spot.hidden = tip.hidden = true; }

  function near(event) {
    const box = svg.getBoundingClientRect(), s = scale();
    let best = null, least = REACH;
    for (const point of shown()) {
      const distance = Math.hypot(point[0] * s - (event.clientX - box.left), point[1] * s - (event.clientY - box.top));
      if (distance < least) { least = distance; best = point; }
    }
    if (best) show(best); else hide();
  }

  plot.addEventListener("pointermove", near);
  plot.addEventListener("pointerdown", near);
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") hide();
    const all = shown();
    if (!step || !all.length) return;
    event.preventDefault();
    at = (at + step + all.length) % all.length;
    show(all[at]);
    announce.textContent = all[at][2];
  });
}
