"use strict";
// Sorts the table by a column and shows the rows that hold every word of the search.
const table = document.getElementById("features");
const body = table.tBodies[0];
const rows = Array.from(body.rows);
const heads = Array.from(table.tHead.rows[0].cells);
const count = document.getElementById("count");
const search = document.getElementById("search");
const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    row.hidden = !words.every((word) => texts.get(row).includes(word));
    shown += row.hidden ? 0 : 1;
  }
  count.textContent = shown + " of " + rows.length + " features";
}

function sort(column) {
  const head = heads[column];
  const down = head.getAttribute("aria-sort") === "ascending";
  const sign = down ? -1 : 1;
  const isNumber = head.classList.contains("num");
  const key = (row) => row.cells[column].dataset.value;
  const sorted = rows.slice().sort((one, other) => {
    const a = key(one), b = key(other);
    // what is not known comes last, either way
    if (a === "" || b === "") return (a === "" ? 1 : 0) - (b === "" ? 1 : 0);
    return sign * (isNumber ? Number(a) - Number(b) : a.localeCompare(b));
  });
  for (const each of heads) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...sorted);
}

heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => sort(column)));
search.addEventListener("input", filter);
filter();
