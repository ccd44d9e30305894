"use strict";
const tip = document.getElementById("tip");
const ns = "http://www.w3.org/2000/svg";

/* The tip stands beside what it speaks of, and never outside the window. */
const showTip = (text, box) => {
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.x - width / 2), innerWidth - width - 8);
  const above = box.y - height - 14;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : box.y + 18}px`;
};

/* A figure knows its marks; the nearest one to the pointer, or the next by an arrow key, speaks. */
const figure = (svg) => {
  const ring = document.createElementNS(ns, "circle");
  ring.setAttribute("class", "ring");
  ring.setAttribute("r", "8");
  ring.toggleAttribute("hidden", true);
  svg.append(ring);
  let marks = null;
  let current = null;
  const all = () => {
    marks ??= [...svg.querySelectorAll("[data-t]")].map((element) => {
      const box = element.getBBox();
      const x = box.x + box.width / 2;
      return { element, x, y: box.y + box.height / 2, box, group: element.closest("g.line, .heat > g") };
    });
    return marks.filter((mark) => !mark.group.hasAttribute("hidden"));
  };
  const leave = () => {
    current = null;
    tip.hidden = true;
    ring.toggleAttribute("hidden", true);
  };
  /* Marks that lie on each other are read out together; else the hidden ones could not be found. */
  const together = (mark) => {
    const near = all().filter((other) => Math.hypot(other.x - mark.x, other.y - mark.y) < 4);
    const texts = new Set([mark, ...near].map(({ element }) => element.getAttribute("data-t")));
    const said = [...texts];
    return said.length > 6 ? [...said.slice(0, 5), `and ${said.length - 5} more`] : said;
  };
  const go = (mark) => {
    current = mark;
    const at = new DOMPoint(mark.x, mark.y).matrixTransform(svg.getScreenCTM());
    const field = mark.element.tagName === "rect";
    ring.toggleAttribute("hidden", field);
    ring.setAttribute("cx", mark.x);
    ring.setAttribute("cy", mark.y);
    showTip(together(mark).join("\n"), at);
  };
  const inside = ({ box }, at) =>
    at.x >= box.x && at.x <= box.x + box.width && at.y >= box.y && at.y <= box.y + box.height;
  const point = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(
      svg.getScreenCTM().inverse(),
    );
    let best = null;
    let least = 28;
    for (const mark of all()) {
      const far = Math.hypot(mark.x - at.x, mark.y - at.y);
      const fits = mark.element.tagName === "rect" ? inside(mark, at) : far < least;
      if (fits) [best, least] = [mark, far];
    }
    if (best) go(best);
    else leave();
  };
  const beside = (mark, step) => {
    const shown = all();
    const groups = [...new Set(shown.map((other) => other.group))];
    const next = groups[groups.indexOf(mark.group) + step] ?? mark.group;
    return shown
      .filter((other) => other.group === next)
      .reduce((a, b) => (Math.abs(b.x - mark.x) < Math.abs(a.x - mark.x) ? b : a));
  };
  const along = (mark, step) => {
    const shown = all().filter((other) => other.group === mark.group);
    return shown[shown.indexOf(mark) + step] ?? mark;
  };
  const keys = {
    ArrowRight: (mark) => along(mark, 1),
    ArrowLeft: (mark) => along(mark, -1),
    ArrowDown: (mark) => beside(mark, 1),
    ArrowUp: (mark) => beside(mark, -1),
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    const step = keys[event.key];
    const first = all()[0];
    if (!step || !first) return;
    event.preventDefault();
    go(current ? step(current) : first);
  });
};
for (const svg of document.querySelectorAll("svg.chart")) figure(svg);

/* The legend shows and hides all lines of a name. */
for (const button of document.querySelectorAll("button[data-key]"))
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    const lines = button.closest("figure").querySelectorAll("g.line");
    for (const line of lines)
      if (line.getAttribute("data-key") === button.getAttribute("data-key"))
        line.toggleAttribute("hidden", !on);
  });

/* Light, dark, or as the system has it. */
const theme = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => {
  const set = document.documentElement.getAttribute("data-theme");
  return set ? set === "dark" : dark.matches;
};
const name = () => {
  theme.textContent = isDark() ? "light page" : "dark page";
};
theme.hidden = false;
theme.addEventListener("click", () => {
  document.documentElement.setAttribute("data-theme", isDark() ? "light" : "dark");
  name();
});
dark.addEventListener("change", name);
name();
