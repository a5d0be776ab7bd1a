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
export type Sandbox = Schemas["SandboxView"];
export type SandboxItem = Schemas["SandboxListItem"];
export type Command = Schemas["SandboxCommandView"];
export type RunStatistics = Schemas["RunStatistics"];
export type Workflow = Schemas["WorkflowView"];
export type Schedule = Schemas["ScheduleView"];
export type CatchUp = Schemas["CatchUp"];
export type Worker = Schemas["WorkerView"];
export type TaskType = Schemas["TaskTypeView"];
export type Provider = Schemas["ProviderView"];
export type FileInfo = Schemas["FileInfo"];
export type Job = Schemas["JobView"];
export type JobType = Schemas["JobTypeView"];
export type JobVerdict = Schemas["VerdictView"];
export type Candidate = Schemas["CandidateView"];
export type NetworkProfile = Schemas["NetworkProfile"];
export type Key = Schemas["KeyView"];
export type CreatedKey = Schemas["CreateKeyResponse"];
export type Scope = Schemas["Scope"];
export type AuditEntry = Schemas["AuditEntry"];

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

/** Whether the request got no answer: the server may have done what it was asked. */
export const hasNoAnswer = (error: unknown): boolean => error instanceof Problem && error.status === 0;

/** For `refetchInterval`. It stops where the key is refused: every refusal may be a line in the audit list. */
export const unlessForbidden =
  (milliseconds: number) =>
  ({ state: { error } }: { state: { error: Error | null } }): number | false =>
    error instanceof Problem && error.status === 403 ? false : milliseconds;

export const isSignedOut = (error: unknown): boolean => error instanceof Problem && error.status === 401;

const problems: Middleware = {
  onRequest({ request }) {
    for (const [name, value] of Object.entries(browserHeader())) request.headers.set(name, value);
  },
  async onResponse({ response }) {
    compareClocks(response.headers.get("date"));
    if (!response.ok) throw await Problem.from(response);
  },
  onError: () => new Problem(0, "the server cannot be reached"),
};

const CLOCK_TOLERANCE_MS = 2_000; // the header has whole seconds, and takes a moment to arrive
let clockOffset = 0;

function compareClocks(date: string | null): void {
  const offset = Date.parse(date ?? "") - Date.now();
  if (Math.abs(offset - clockOffset) >= CLOCK_TOLERANCE_MS) clockOffset = offset;
}

/** The server's time, as the clock of the browser's machine may be wrong. */
export const serverTime = (): number => Date.now() + clockOffset;

export const api = createClient<paths>({ credentials: "same-origin" });
api.use(problems);

/** The body of a successful response; `problems` throws for every other. */
export async function body<T>(answer: Promise<{ data?: T }>): Promise<T> {
  return (await answer.catch(brokenOff)).data as T;
}

function brokenOff(error: unknown): never {
  throw error instanceof Problem ? error : new Problem(0, "the answer of the server broke off");
}

/** The options of a request whose body is bytes. */
export const octets = (content: Blob | Uint8Array) => ({
  headers: { "Content-Type": "application/octet-stream" },
  body: content as unknown as string,
  bodySerializer: (raw?: string) => raw,
});
