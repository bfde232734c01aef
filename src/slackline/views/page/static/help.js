// Help on cards, columns and figures: the text in `data-help`, shown beside the element on hover, focus and touch.

import { element, say } from "./text.js";

const GAP = 6;

export function followHelp() {
  const tip = element("div", { id: "help", role: "tooltip", hidden: "" });
  document.body.append(tip);
  let shown = null;
  const place = () => {
    if (shown === null) return;
    const [around, own] = [shown.getBoundingClientRect(), tip.getBoundingClientRect()];
    const below = around.bottom + GAP + own.height <= innerHeight;
    tip.style.left = `${Math.max(GAP, Math.min(around.left, innerWidth - own.width - GAP))}px`;
    tip.style.top = `${Math.max(GAP, below ? around.bottom + GAP : around.top - own.height - GAP)}px`;
  };
  const hide = () => {
    shown?.removeAttribute("aria-describedby");
    shown = null;
    tip.hidden = true;
  };
  const follow = (event) => {
    const target = event.target.closest?.("[data-help]") ?? null;
    if (target === shown) return;
    hide();
    if (target === null) return;
    shown = target;
    say(tip, target.dataset.help);
    target.setAttribute("aria-describedby", "help");
    tip.hidden = false;
    place();
  };
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, follow);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", place, { capture: true });
}
