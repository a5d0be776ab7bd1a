import type { RunEvent } from "../api/events";

export interface Span {
  phase: "queued" | "running" | "waiting";
  attempt: number;
  from: number;
  /** Absent while it goes on. */
  to?: number;
  /** Whether the attempt failed and was retried. */
  failed?: boolean;
}

export interface StepHistory {
  step: string;
  spans: Span[];
  outcome?: "completed" | "failed" | "skipped";
}

const ITEM = "--";

const PHASES: Record<string, Span["phase"]> = {
  "gate.asked": "waiting",
  "step.queued": "queued",
  "step.started": "running",
  "step.continued": "queued",
  "step.retrying": "waiting",
  "step.paused": "waiting",
  "step.sleeping": "waiting",
  "step.listening": "waiting",
  "step.calling": "running",
  "approval.requested": "waiting",
  "map.expanded": "running",
  "map.resumed": "running",
};

const OUTCOMES: Record<string, StepHistory["outcome"]> = {
  "step.completed": "completed",
  "step.failed": "failed",
  "step.skipped": "skipped",
  "approval.given": "completed",
  "signal.taken": "completed",
};

const RUN_ENDS = new Set(["run.succeeded", "run.failed", "run.timed_out", "run.cancelled"]);

/** The history of each step, in the order in which the steps began, with the items of a map after the map. */
export function stepsIn(events: readonly RunEvent[]): StepHistory[] {
  const steps = new Map<string, StepHistory>();
  for (const event of events) {
    const at = Date.parse(event.at);
    const over = cancelledBy(event);
    if (over) for (const { step, spans } of steps.values()) if (over(step)) close(spans, at);
    if (event.step === undefined || event.type.startsWith("run.")) continue;
    const phase = PHASES[event.type];
    const outcome = event.type === "step.overridden" ? overridden(event) : OUTCOMES[event.type];
    if (phase === undefined && outcome === undefined) continue;
    let one = steps.get(event.step);
    if (one === undefined) steps.set(event.step, (one = { step: event.step, spans: [] }));
    const last = one.spans.at(-1);
    if (event.type === "step.retrying" && last !== undefined) last.failed = true;
    close(one.spans, at);
    one.outcome = outcome;
    if (phase !== undefined) one.spans.push({ phase, attempt: event.attempt ?? 0, from: at });
  }
  const places = new Map([...steps.keys()].map((step, place) => [step, place]));
  const key = ({ step }: StepHistory): [number, number] => {
    const place = places.get(mapOf(step) ?? step) ?? places.get(step) ?? 0;
    return [place, isMapItem(step) ? Number(step.split(ITEM)[1]) : -1];
  };
  return [...steps.values()]
    .map((one) => ({ one, key: key(one) }))
    .sort((a, b) => a.key[0] - b.key[0] || a.key[1] - b.key[1])
    .map(({ one }) => one);
}

/** `read` of `read--3`. */
export function mapOf(step: string): string | undefined {
  return isMapItem(step) ? step.split(ITEM)[0] : undefined;
}

/** Not `pay--undo` or `--on-failure`, which run after a failure. */
export const isMapItem = (step: string): boolean => /.--\d+$/.test(step);

/** Selects the steps that an event ends without naming them. */
function cancelledBy({ type, step }: RunEvent): ((other: string) => boolean) | undefined {
  if (RUN_ENDS.has(type)) return () => true;
  if (type === "run.ending") return (other) => !other.includes(ITEM) || isMapItem(other);
  if (type === "step.failed" || type === "step.overridden") return (other) => mapOf(other) === step;
  return undefined;
}

const overridden = (event: RunEvent) => (event.action === "skip" ? "skipped" : "completed");

function close(spans: Span[], at: number): void {
  const last = spans.at(-1);
  if (last !== undefined) last.to ??= at;
}
