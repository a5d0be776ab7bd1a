import { createContext, useContext } from "react";

import type { Caller } from "./api/client";

export const CallerContext = createContext<Caller | null>(null);

export const allows = ({ scopes }: Caller, scope: string): boolean => scopes.includes("*") || scopes.includes(scope);

/** Whether the signed-in key has a scope. Pages offer only what it allows. */
export function useMay(): (scope: string) => boolean {
  const caller = useContext(CallerContext);
  return (scope) => caller !== null && allows(caller, scope);
}
