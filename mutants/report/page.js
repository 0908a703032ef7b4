// Without this script everything is readable; with it the list of mutants can be narrowed.
const filter = document.querySelector(".filter");
const mutants = [...document.querySelectorAll(".mutant")];

function narrow() {
  const { state, operator, word } = filter.elements;
  const wanted = word.value.trim().toLowerCase();
  for (const mutant of mutants) {
    mutant.hidden =
      (state.value && mutant.dataset.state !== state.value) ||
      (operator.value && mutant.dataset.operator !== operator.value) ||
      !mutant.firstElementChild.textContent.toLowerCase().includes(wanted);
  }
  for (const group of document.querySelectorAll(".group")) {
    group.hidden = !group.querySelector(".mutant:not([hidden])");
  }
  const shown = mutants.filter((mutant) => !mutant.hidden).length;
  filter.querySelector("output").textContent = `${shown} of ${mutants.length} shown`;
}

function openNamed() {
  const mutant = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (mutant?.matches("details")) {
    mutant.open = true;
    mutant.scrollIntoView();
  }
}

if (filter) {
  filter.hidden = false;
  filter.addEventListener("input", narrow);
  filter.addEventListener("submit", (event) => event.preventDefault());
  narrow();
}
window.addEventListener("hashchange", openNamed);
openNamed();
