import { duration } from "../parts";
import { mapOf, type StepHistory } from "./history";

const MOST_ITEMS = 50; // of each map

/** A waterfall: when each attempt of each step waited, was queued and ran. */
export function Timeline({
  steps,
  from,
  to,
  chosen,
  choose,
}: {
  steps: StepHistory[];
  from: number;
  to: number;
  chosen?: string;
  choose: (step: string) => void;
}) {
  const items = new Map<string, number>();
  const shown = steps.filter(({ step }) => {
    const map = mapOf(step);
    if (map === undefined) return true;
    items.set(map, (items.get(map) ?? 0) + 1);
    return (items.get(map) ?? 0) <= MOST_ITEMS;
  });
  const whole = Math.max(to - from, 1);
  const percent = (at: number) => `${(100 * (at - from)) / whole}%`;
  return (
    <>
      <ol className="timeline" aria-label="Timeline">
        {shown.map(({ step, spans, outcome }) => (
          <li key={step} className={step === chosen ? "chosen" : ""}>
            <button type="button" className="plain" onClick={() => choose(step)}>
              {step}
            </button>
            <div className="lane">
              {spans.map((span) => {
                const end = span.to ?? to;
                const attempt = span.attempt > 1 ? `, attempt ${span.attempt}` : "";
                const result = span.failed ? "failed" : span === spans.at(-1) ? (outcome ?? "") : "";
                const what = `${span.phase}${attempt}, ${duration(end - span.from)}${result && `, ${result}`}`;
                return (
                  <span
                    key={`${span.from} ${span.phase}`}
                    className={`bar ${span.phase} ${result}`}
                    style={{ left: percent(span.from), width: `max(3px, ${percent(from + end - span.from)})` }}
                    title={what}
                    role="img"
                    aria-label={what}
                  />
                );
              })}
            </div>
          </li>
        ))}
      </ol>
      {shown.length < steps.length && (
        <p className="hint">
          The first {MOST_ITEMS} items of a map are shown; there are {steps.length - shown.length} more.
        </p>
      )}
    </>
  );
}
