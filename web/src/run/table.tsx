import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { Link } from "wouter";

import { useAction } from "../api/action";
import type { RunSummary } from "../api/client";
import { useMay } from "../caller";
import { duration, Status, Time, useNow } from "../parts";
import { canBeRetried, canBeStopped, retry, stop } from "./actions";

/** Runs with their states. Those that are chosen can be stopped or retried together. */
export function RunTable({ runs, empty }: { runs: RunSummary[]; empty: ReactNode }) {
  const may = useMay();
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const now = useNow(runs.some((run) => run.status === "running"));
  if (runs.length === 0) return <p className="empty">{empty}</p>;
  const selectable = may("runs:write") || may("runs:repair");
  const choose = (id: string, on: boolean) => {
    const after = new Set(chosen);
    on ? after.add(id) : after.delete(id);
    setChosen(after);
  };
  return (
    <>
      {selectable && (
        <Bulk runs={runs.filter((run) => chosen.has(run.run_id))} done={() => setChosen(new Set())} />
      )}
      <table className="list">
        <thead>
          <tr>
            {selectable && <th aria-label="Chosen" />}
            <th>Run</th>
            <th>Workflow</th>
            <th>Status</th>
            <th>Started</th>
            <th>Took</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <tr key={run.run_id}>
              {selectable && (
                <td>
                  <input
                    type="checkbox"
                    aria-label={`Choose ${run.run_id}`}
                    checked={chosen.has(run.run_id)}
                    onChange={(event) => choose(run.run_id, event.target.checked)}
                  />
                </td>
              )}
              <td>
                <Link href={`/runs/${run.run_id}`} className="id">
                  {run.run_id}
                </Link>
              </td>
              <td>{run.workflow}</td>
              <td>
                <Status value={run.status} />
                {run.error && <span className="why">{run.error.message}</span>}
              </td>
              <td data-label="Started">
                <Time at={run.started_at} />
              </td>
              <td data-label="Took">{duration((run.ended_at ? Date.parse(run.ended_at) : now) - Date.parse(run.started_at))}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

/** Stops or retries the chosen runs one by one; refusals stay on the page. */
function Bulk({ runs, done }: { runs: RunSummary[]; done: () => void }) {
  const may = useMay();
  const queries = useQueryClient();
  const act = useAction({
    mutationFn: async (one: (run: RunSummary) => Promise<unknown>) => {
      const refused: string[] = [];
      for (const run of runs) {
        await one(run).catch((error: Error) => refused.push(`${run.run_id}: ${error.message}`));
      }
      return refused;
    },
    onSuccess: () => {
      done();
      return queries.invalidateQueries({ queryKey: ["runs"] });
    },
  });
  const offers = (can: (run: RunSummary) => boolean) => runs.length > 0 && runs.every(can) && !act.isPending;
  return (
    <div className="bulk" role="group" aria-label="With the chosen runs">
      {may("runs:write") && (
        <button type="button" disabled={!offers(canBeStopped)} onClick={() => act.mutate(stop)}>
          Stop
        </button>
      )}
      {may("runs:repair") && (
        <button type="button" disabled={!offers(canBeRetried)} onClick={() => act.mutate(retry)}>
          Retry
        </button>
      )}
      <span role="status">{runs.length > 0 ? `${runs.length} chosen` : ""}</span>
      {act.data?.map((line) => (
        <p key={line} role="alert" className="trouble">
          {line}
        </p>
      ))}
    </div>
  );
}
