"use strict";
const changes = [...document.querySelectorAll(".change")];
const kinds = [...document.querySelectorAll("button[data-kind]")];
const category = document.getElementById("category");
const find = document.getElementById("find");
const side = document.getElementById("side");
const open = document.getElementById("open");

function filter() {
  const wanted = new Set(kinds.filter(isPressed).map((button) => button.dataset.kind));
  const words = find.value.toLowerCase().trim();
  let shown = 0;
  for (const change of changes) {
    const fits =
      change.dataset.kinds.split(" ").some((kind) => wanted.has(kind)) &&
      (!category.value || change.dataset.category === category.value) &&
      change.dataset.title.includes(words);
    change.hidden = !fits;
    shown += fits;
  }
  document.getElementById("shown").textContent = `${shown} of ${changes.length} shown`;
  document.getElementById("none").hidden = shown > 0;
}

function isPressed(button) {
  return button.getAttribute("aria-pressed") === "true";
}

// The first click on a kind shows that kind alone; the next ones add and take away. None is the same as all.
function choose(event) {
  const chosen = event.currentTarget;
  if (kinds.every(isPressed)) {
    kinds.forEach((button) => button.setAttribute("aria-pressed", String(button === chosen)));
  } else {
    chosen.setAttribute("aria-pressed", String(!isPressed(chosen)));
    if (!kinds.some(isPressed)) kinds.forEach((button) => button.setAttribute("aria-pressed", "true"));
  }
  filter();
}

if (changes.length) {
  kinds.forEach((button) => button.addEventListener("click", choose));
  category.addEventListener("change", filter);
  find.addEventListener("input", filter);
  side.addEventListener("change", () => document.body.classList.toggle("sides", side.checked));
  open.addEventListener("click", () => {
    const closed = changes.some((change) => !change.hidden && !change.open);
    changes.filter((change) => !change.hidden).forEach((change) => (change.open = closed));
    open.textContent = closed ? "close all" : "open all";
  });
}
