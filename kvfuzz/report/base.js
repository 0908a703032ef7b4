// Without this script everything is readable; with it commands can be copied, and a map tells the
// place under the pointer, or under the keyboard: the arrow keys go from place to place.
for (const button of navigator.clipboard ? document.querySelectorAll(".command button") : []) {
  button.hidden = false;
  button.addEventListener("click", () =>
    navigator.clipboard.writeText(button.previousElementSibling.textContent).then(() => {
      button.textContent = "copied";
    }),
  );
}

// The cell of `row` that covers a column; cells without a state may span several.
function cellAt(row, column) {
  let passed = 0;
  for (const cell of row?.querySelectorAll("td") ?? []) {
    passed += cell.colSpan;
    if (passed > column) return cell;
  }
  return null;
}

function columnOf(cell) {
  let passed = 0;
  for (let left = cell.previousElementSibling; left?.matches("td"); left = left.previousElementSibling) {
    passed += left.colSpan;
  }
  return passed;
}

// The nearest cell with a state in the direction of an arrow key; null at the edge.
function neighbour(cell, key) {
  const column = columnOf(cell);
  let row = cell.parentElement;
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const side = key === "ArrowLeft" ? "previousElementSibling" : "nextElementSibling";
    let next = cell[side];
    while (next && !next.title) next = next[side];
    return next;
  }
  const side = key === "ArrowUp" ? "previousElementSibling" : "nextElementSibling";
  for (row = row[side]; row; row = row[side]) {
    const next = cellAt(row, column);
    if (next?.title) return next;
  }
  return null;
}

function enliven(map) {
  const body = map.querySelector("tbody");
  const readout = map.querySelector(".readout");
  const tell = (event) => {
    const cell = event.target.closest("td[title]");
    if (cell) readout.textContent = cell.title;
  };
  let current = body.querySelector("td.first") ?? body.querySelector("td[title]");
  const enter = (cell) => {
    current.tabIndex = -1;
    current = cell;
    current.tabIndex = 0;
  };
  map.querySelector("table").setAttribute("role", "grid");
  readout.hidden = false;
  enter(current);
  body.addEventListener("pointerover", tell);
  body.addEventListener("focusin", tell);
  body.addEventListener("click", (event) => {
    const cell = event.target.closest("td[title]");
    if (cell) {
      enter(cell);
      cell.focus();
    }
  });
  body.addEventListener("keydown", (event) => {
    if (!event.key.startsWith("Arrow") || event.ctrlKey || event.altKey || event.metaKey) return;
    const next = neighbour(current, event.key);
    event.preventDefault();
    if (next) {
      enter(next);
      next.focus();
    }
  });
}
document.querySelectorAll(".map").forEach(enliven);
