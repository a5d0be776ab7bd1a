import { duration, useNow } from "../parts";

const SHORT_MS = 60_000;

/** Leases that are offered, in seconds; the worker decides what it allows. */
export const LEASES = [
  [600, "10 minutes"],
  [1_800, "30 minutes"],
  [3_600, "1 hour"],
  [28_800, "8 hours"],
] as const;

/** How long a lease lasts, counting down. */
export function LeaseLeft({ until }: { until: string }) {
  const left = Date.parse(until) - useNow(true);
  return (
    <time dateTime={until} title={until} className={left < SHORT_MS ? "short" : ""}>
      {left > 0 ? duration(Math.floor(left / 1_000) * 1_000) : "over"}
    </time>
  );
}
