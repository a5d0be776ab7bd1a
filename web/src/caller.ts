import { createContext, useContext } from "react";

import type { Caller } from "./api/client";

export const CallerContext = createContext<Caller | null>(null);

/** Tells whether who is signed in may do something; what they may not is not offered. */
export function useMay(): (scope: string) => boolean {
  const scopes = useContext(CallerContext)?.scopes ?? [];
  return (scope) => scopes.includes("*") || scopes.includes(scope);
}
