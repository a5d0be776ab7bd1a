import { keepPreviousData, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useSearchParams } from "wouter";

import { api, body, type RunPhase, type RunSummary } from "../api/client";
import { useEvents, useRefresh } from "../api/events";
import { useMay } from "../caller";
import { duration, readable, Status, Time, Trouble, useNow, useTitle } from "../parts";
import { canBeRetried, canBeStopped, retry, stop } from "../run/actions";

const STATUSES = ["running", "succeeded", "failed", "timed_out", "cancelled"] as const satisfies readonly RunPhase[];
const CHANGES = "run.started,run.succeeded,run.failed,run.timed_out,run.cancelled,run.retried";
const PAGE_SIZE = 50;
const LOOK_MS = 5_000; // the list comes from an index, which is updated a moment after the event

type Filters = { workflow?: string; status?: (typeof STATUSES)[number]; label?: string[]; cursor?: string };

/** The filters in the address. The server refuses invalid ones and gives the reason. */
function filtersIn(search: URLSearchParams): Filters {
  return {
    workflow: search.get("workflow") || undefined,
    status: (search.get("status") || undefined) as Filters["status"],
    label: search.getAll("label"),
    cursor: search.get("cursor") || undefined,
  };
}

export function RunsPage() {
  useTitle("Runs");
  const [search, setSearch] = useSearchParams();
  const filters = filtersIn(search);
  const runs = useQuery({
    queryKey: ["runs", filters],
    queryFn: () => body(api.GET("/v1/runs", { params: { query: { ...filters, limit: PAGE_SIZE } } })),
    placeholderData: keepPreviousData,
    refetchInterval: LOOK_MS,
  });
  useEvents(`/v1/events?type=${CHANGES}`, useRefresh("runs"));

  const change: Change = (changed) =>
    setSearch((before) => {
      const after = new URLSearchParams(before);
      after.delete("cursor");
      for (const [name, values] of Object.entries(changed)) {
        after.delete(name);
        for (const value of values) if (value) after.append(name, value);
      }
      return after;
    });

  return (
    <>
      <h1>Runs</h1>
      <Filter filters={filters} change={change} />
      {runs.error && <Trouble error={runs.error} />}
      {runs.data && <Table runs={runs.data.runs} filtered={search.size > 0} />}
      <nav className="pager" aria-label="Pages of the list">
        {filters.cursor && (
          <button type="button" onClick={() => change({})}>
            Newest
          </button>
        )}
        {runs.data?.next && (
          <button type="button" onClick={() => change({ cursor: [runs.data.next ?? ""] })}>
            Older
          </button>
        )}
      </nav>
    </>
  );
}

type Change = (to: Record<string, string[]>) => void;

function Filter({ filters, change }: { filters: Filters; change: Change }) {
  return (
    <form
      className="filters"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        const given = new FormData(event.currentTarget);
        const others = filters.label?.slice(1) ?? []; // there is one field, and a link may have more
        change({ workflow: [String(given.get("workflow"))], label: [String(given.get("label")), ...others] });
      }}
    >
      <label>
        Workflow
        <input key={filters.workflow} name="workflow" defaultValue={filters.workflow} maxLength={128} />
      </label>
      <label>
        Label
        <input
          key={filters.label?.[0]}
          name="label"
          defaultValue={filters.label?.[0]}
          placeholder="key=value"
          pattern="[^=]+=.*"
          title="key=value"
        />
      </label>
      <label>
        Status
        <select value={filters.status ?? ""} onChange={(event) => change({ status: [event.target.value] })}>
          <option value="">any</option>
          {STATUSES.map((status) => (
            <option key={status} value={status}>
              {readable(status)}
            </option>
          ))}
        </select>
      </label>
      <button type="submit">Filter</button>
    </form>
  );
}

function Table({ runs, filtered }: { runs: RunSummary[]; filtered: boolean }) {
  const may = useMay();
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const now = useNow(runs.some((run) => run.status === "running"));
  if (runs.length === 0) {
    return filtered ? (
      <p className="empty">No run matches these filters.</p>
    ) : (
      <p className="empty">
        No runs yet. Start one with <code>fumehood workflow run</code>, or try <code>fumehood run</code>.
      </p>
    );
  }
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
              <td>
                <Time at={run.started_at} />
              </td>
              <td>{duration((run.ended_at ? Date.parse(run.ended_at) : now) - Date.parse(run.started_at))}</td>
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
  const act = useMutation({
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
