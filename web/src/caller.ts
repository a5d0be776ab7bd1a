import { createContext, useContext } from "react";

import type { Caller } from "./api/client";

export const CallerContext = createContext<Caller | null>(null);

/** Whether the signed-in key has a scope. Pages offer only what it allows. */
export function useMay(): (scope: string) => boolean {
  const scopes = useContext(CallerContext)?.scopes ?? [];
  return (scope) => scopes.includes("*") || scopes.includes(scope);
}
