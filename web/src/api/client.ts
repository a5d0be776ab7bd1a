import createClient, { type Middleware } from "openapi-fetch";

import { keep, kept } from "../kept";
import type { components, paths } from "./schema";

type Schemas = components["schemas"];
export type Caller = Schemas["CallerView"];
export type Run = Schemas["RunView"];
export type RunSummary = Schemas["RunSummary"];
export type RunPhase = Schemas["RunPhase"];
export type Step = Schemas["StepView"];
export type Failure = Schemas["Failure"];

const MARK = "fumehood-browser";

/** The cookie counts only together with the mark that was sent at the sign-in; only pages of this origin can read it. */
export function browserHeader(): { "X-Fumehood-Browser": string } {
  if (!/^[0-9a-f]{48}$/.test(kept(MARK) ?? "")) {
    keep(MARK, Array.from(crypto.getRandomValues(new Uint8Array(24)), (one) => one.toString(16).padStart(2, "0")).join(""));
  }
  return { "X-Fumehood-Browser": kept(MARK) ?? "" }; // another tab may have been first
}

/** The server's reason for not doing what it was asked. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }

  static async from(response: Response): Promise<Problem> {
    const body: unknown = await response.json().catch(() => null);
    const detail = body !== null && typeof body === "object" && "detail" in body ? String(body.detail) : "";
    return new Problem(response.status, detail || `the server answered with status ${response.status}`);
  }
}

export const isSignedOut = (error: unknown): boolean => error instanceof Problem && error.status === 401;

const problems: Middleware = {
  onRequest({ request }) {
    for (const [name, value] of Object.entries(browserHeader())) request.headers.set(name, value);
  },
  async onResponse({ response }) {
    if (!response.ok) throw await Problem.from(response);
  },
  onError: () => new Problem(0, "the server cannot be reached"),
};

export const api = createClient<paths>({ credentials: "same-origin" });
api.use(problems);

/** The body of a successful response; `problems` throws for every other. */
export async function body<T>(answer: Promise<{ data?: T }>): Promise<T> {
  return (await answer).data as T;
}
