"use strict";
(() => {
  // A link to a part that is folded away unfolds it.
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target instanceof HTMLDetailsElement) { target.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", unfold);
  unfold();
})();
(() => {
  // Tables sort by a column within their groups; what has no value stays last. Without this script they keep their order.
  const value = (row, column) => {
    const cell = row.cells[column];
    if (!cell || cell.colSpan > 1) return null;
    const text = (cell.dataset.v ?? cell.textContent).trim().replace(/\u202f/g, "");
    if (text === "" || text === "–") return null;
    const number = parseFloat(text);
    return Number.isNaN(number) || !/^[-+]?[\d.]/.test(text) ? text : number;
  };

  const order = (one, two) =>
    typeof one === "number" && typeof two === "number" ? one - two : String(one).localeCompare(String(two), "en", { numeric: true });

  const sort = (table, column, sign) => {
    for (const body of table.tBodies) {
      const fixed = [...body.rows].filter((row) => row.classList.contains("group"));
      const keyed = [...body.rows].filter((row) => !row.classList.contains("group")).map((row) => [value(row, column), row]);
      const known = keyed.filter(([key]) => key !== null).sort(([one], [two]) => sign * order(one, two));
      const unknown = keyed.filter(([key]) => key === null);
      body.append(...fixed, ...[...known, ...unknown].map(([, row]) => row));
    }
  };

  for (const table of document.querySelectorAll(".scroll > table:not(.heads)")) {
    if (![...table.tBodies].some((body) => body.querySelectorAll("tr:not(.group)").length > 1)) continue;
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
        sort(table, column, sign);
      });
    });
  }
})();
(() => {
  // Commands are copied by a button. Where the clipboard is not to be had, they are selected.
  for (const commands of document.querySelectorAll("pre.commands")) {
    const text = commands.textContent.split("\n").map((line) => line.trim()).join("\n");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(commands);
      }
    });
    commands.append(button);
  }
})();
