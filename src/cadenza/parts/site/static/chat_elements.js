// Finds and makes elements. Text is text: nothing here takes HTML.

export const byId = (id) => document.getElementById(id);

export function element(tag, fields = {}, ...children) {
  const made = Object.assign(document.createElement(tag), fields);
  made.append(...children);
  return made;
}

export function button(label, name, act, className = "quiet") {
  const made = element("button", { type: "button", className, textContent: label, onclick: act });
  if (name) made.setAttribute("aria-label", name);
  return made;
}
