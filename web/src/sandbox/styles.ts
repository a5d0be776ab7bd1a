/**
 * xterm.js creates style elements and sets style attributes, both of which the content security policy of this page
 * forbids. With this change the same styles are applied through the CSSOM, which the policy allows.
 */
export function applyStylesThroughCssom(): void {
  const create = document.createElement.bind(document);
  document.createElement = (name: string, options?: ElementCreationOptions): HTMLElement => {
    if (name === "style") return styleSheet(create("template"));
    const element = create(name, options);
    if (name === "span") element.setAttribute = setAttribute;
    return element;
  };
}

function setAttribute(this: HTMLElement, name: string, value: string): void {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
}

/** Stands for a style element: its text is a style sheet of the document until it is removed. */
function styleSheet(element: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  Object.defineProperty(element, "textContent", {
    set(text: string) {
      sheet.replaceSync(text);
      if (!document.adoptedStyleSheets.includes(sheet)) document.adoptedStyleSheets.push(sheet);
    },
  });
  const remove = element.remove.bind(element);
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
    remove();
  };
  return element;
}
