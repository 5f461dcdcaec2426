"use strict";
(() => {
  // A link to a part that is folded away unfolds it.
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target instanceof HTMLDetailsElement) { target.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", unfold);
  unfold();

  const maps = document.getElementById("maps");
  if (!maps) return;
  const rows = [...maps.querySelectorAll(".heads tbody tr")];
  const grid = rows.map((row) => [...row.querySelectorAll("button")]);
  const axes = rows.map((row) => JSON.parse(row.dataset.tokens || rows[0].dataset.tokens));
  const plot = maps.querySelector(".plot");
  const field = plot.querySelector(".field");
  const large = field.querySelector("img");
  const cross = field.querySelector(".cross");
  const veil = field.querySelector(".veil");
  const title = maps.querySelector("figcaption b");
  const said = maps.querySelector("figcaption output");
  let at = [0, 0];
  let alpha = null;

  const fill = (side, tokens) => {
    side.replaceChildren(...tokens.map((token) => {
      const span = document.createElement("span");
      span.textContent = token;
      return span;
    }));
  };

  // The image's opacity is the root of the weight, in 255 steps.
  const weights = () => {
    const canvas = document.createElement("canvas");
    canvas.width = large.naturalWidth;
    canvas.height = large.naturalHeight;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(large, 0, 0);
    return context.getImageData(0, 0, canvas.width, canvas.height).data;
  };

  const select = (layer, head) => {
    const [queries, keys] = axes[layer];
    const button = grid[layer][head];
    const before = grid[at[0]][at[1]];
    before.setAttribute("aria-pressed", "false");
    before.tabIndex = -1;
    button.setAttribute("aria-pressed", "true");
    button.tabIndex = 0;
    if (axes[layer] !== axes[at[0]]) {
      fill(plot.querySelector(".queries"), queries);
      fill(plot.querySelector(".keys"), keys);
    }
    plot.style.setProperty("--s", queries.length);
    plot.style.setProperty("--t", keys.length);
    veil.setAttribute("viewBox", `0 0 ${keys.length} ${queries.length}`);
    veil.lastElementChild.setAttribute("d", rows[layer].dataset.veil || "");
    large.src = button.firstElementChild.src;
    large.alt = button.firstElementChild.alt;
    title.textContent = button.dataset.title;
    said.textContent = button.dataset.strongest;
    cross.hidden = true;
    alpha = null;
    at = [layer, head];
  };

  grid.forEach((buttons, layer) => buttons.forEach((button, head) => {
    button.addEventListener("click", () => { button.focus(); select(layer, head); });
    button.addEventListener("focus", () => select(layer, head));
  }));

  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  maps.querySelector(".heads").addEventListener("keydown", (event) => {
    const step = steps[event.key];
    const next = step && grid[at[0] + step[0]]?.[at[1] + step[1]];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });

  const point = (event) => {
    const box = field.getBoundingClientRect();
    const [queries, keys] = axes[at[0]];
    const key = Math.min(keys.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * keys.length)));
    const query = Math.min(queries.length - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * queries.length)));
    if (!alpha) {
      if (!large.complete || !large.naturalWidth) return;
      alpha = weights();
    }
    const [red, , , opacity] = alpha.slice(4 * (query * keys.length + key));
    const hidden = opacity > 0 && red > 80;
    const weight = hidden ? "hidden by the mask" : ((opacity / 255) ** 2).toFixed(2);
    said.textContent = `${queries[query]} to ${keys[key]}, ${weight}`;
    cross.hidden = false;
    cross.style.left = `${(100 * key) / keys.length}%`;
    cross.style.top = `${(100 * query) / queries.length}%`;
  };
  field.addEventListener("pointermove", point);
  field.addEventListener("pointerdown", point);
  field.addEventListener("pointerleave", () => {
    cross.hidden = true;
    said.textContent = grid[at[0]][at[1]].dataset.strongest;
  });
})();
