import { useRef } from "react";

/** A key for each text: sent again, the same text has the same key. */
export function useIdempotencyKey(): (text: string) => string {
  const last = useRef({ text: "", key: "" });
  return (text) => {
    if (last.current.key === "" || last.current.text !== text) last.current = { text, key: `web-${crypto.randomUUID()}` };
    return last.current.key;
  };
}
