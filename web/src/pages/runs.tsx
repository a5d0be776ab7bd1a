import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useSearchParams } from "wouter";

import { api, body, type RunPhase } from "../api/client";
import { useEvents, useRefresh } from "../api/events";
import { readable, Trouble, useTitle } from "../parts";
import { RUN_CHANGES } from "../run/actions";
import { RunTable } from "../run/table";

const STATUSES = ["running", "succeeded", "failed", "timed_out", "cancelled"] as const satisfies readonly RunPhase[];
const PAGE_SIZE = 50;
const LOOK_MS = 5_000; // the list comes from an index, which is updated a moment after the event

type Filters = { workflow?: string; schedule?: string; started_after?: string; status?: (typeof STATUSES)[number]; label?: string[]; cursor?: string };

/** The filters in the address. The server refuses invalid ones and gives the reason. */
function filtersIn(search: URLSearchParams): Filters {
  return {
    workflow: search.get("workflow") || undefined,
    schedule: search.get("schedule") || undefined,
    started_after: search.get("started_after") || undefined,
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
  useEvents(`/v1/events?type=${RUN_CHANGES}`, useRefresh("runs"));

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
      {runs.data && (
        <RunTable
          runs={runs.data.runs}
          empty={
            search.size > 0 ? (
              "No run matches these filters."
            ) : (
              <>
                No runs yet. Start one with <code>fumehood workflow run</code>, or try <code>fumehood run</code>.
              </>
            )
          }
        />
      )}
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
        const text = (name: string) => String(given.get(name) ?? "");
        change({
          workflow: [text("workflow")],
          schedule: [text("schedule")],
          started_after: [text("started_after")],
          label: [text("label"), ...others],
        });
      }}
    >
      <label>
        Workflow
        <input key={filters.workflow} name="workflow" defaultValue={filters.workflow} maxLength={128} />
      </label>
      {filters.started_after && ( // links of the overview lead here
        <label>
          Started after
          <input key={filters.started_after} name="started_after" defaultValue={filters.started_after} maxLength={64} />
        </label>
      )}
      {filters.schedule && ( // links of schedules lead here
        <label>
          Schedule
          <input key={filters.schedule} name="schedule" defaultValue={filters.schedule} maxLength={128} />
        </label>
      )}
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
