// Tables sort by a press on a column's head: numbers by their value, words by the alphabet, empty cells always last.
"use strict";
const announce = document.getElementById("announce");

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
