import { oneLine } from "./parts";

/** The browser saves the file; it never shows it. */
export function save(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  link.download = oneLine(name);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** A document as `fumehood verify` takes it: hashes are of canonical JSON, so another way to write it changes none. */
export const saveJson = (document: unknown, name: string): void =>
  save(new Blob([JSON.stringify(document, null, 2), "\n"]), name);
