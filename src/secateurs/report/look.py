"""The look of a page and the little it does; both are hashed in the policy of the page."""

STYLE = """
:root{color-scheme:light dark;--ink:#1b1b1b;--paper:#fff;--line:#d5d5d5;--soft:#f4f4f4}
@media (prefers-color-scheme:dark){:root{--ink:#e8e8e8;--paper:#161616;--line:#444;--soft:#222}}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:62rem;margin:0 auto;padding:1rem}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}h3{font-size:1rem}
figure{margin:0}svg{max-width:100%;height:auto}
.legend{display:flex;flex-wrap:wrap;gap:.4rem;margin-bottom:.4rem}
.legend button{font:inherit;font-size:.85rem;color:inherit;background:var(--soft);cursor:pointer;
border:1px solid var(--line);border-radius:.4rem;padding:.2rem .6rem}
.legend button[aria-pressed=false]{opacity:.45;text-decoration:line-through}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
th,td{border-bottom:1px solid var(--line);padding:.3rem .6rem;text-align:left;white-space:nowrap}
td:last-child{white-space:normal}pre{overflow-x:auto;background:var(--soft);padding:.6rem}
a{color:inherit}circle:focus{outline:2px solid currentColor}
:focus-visible{outline:2px solid currentColor}
#tip{position:fixed;left:1rem;bottom:1rem;background:var(--ink);color:var(--paper);
padding:.4rem .7rem;border-radius:.4rem;font-size:.85rem;max-width:80vw}
[hidden]{display:none!important}
"""

SCRIPT = """
"use strict";
const tip = document.getElementById("tip");
const show = (event) => {
  const text = event.target.getAttribute && event.target.getAttribute("data-text");
  tip.hidden = !text;
  if (text) tip.textContent = text;
};
document.addEventListener("mouseover", show);
document.addEventListener("focusin", show);
for (const button of document.querySelectorAll("button[data-toggle]"))
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    const name = button.getAttribute("data-toggle");
    const group = button.closest("figure").querySelector(`g[data-series="${name}"]`);
    group.toggleAttribute("hidden", !on);
  });
"""
