import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link, useLocation, useSearchParams } from "wouter";

import { api, type AuditEntry, body, unlessForbidden } from "../api/client";
import { Facts, oneLine, readable, Status, Time, Trouble } from "../parts";
import { keysAddress, LOOK_MS, Who } from "./parts";

const PAGE_SIZE = 50;
const COLOURS: Record<string, string> = { done: "completed", refused: "failed", uncertain: "waiting" };

type Filters = Partial<Record<"tenant" | "action" | "by" | "target" | "cursor", string>>;

export const auditAddress = (filters: Filters): string => keysAddress({ view: "audit", ...filters });

/** Who did what in a tenant, newest first. The filters are in the address. */
export function AuditList({ tenant }: { tenant?: string }) {
  const [search] = useSearchParams();
  const [, go] = useLocation();
  const given = (name: string) => search.get(name) || undefined;
  const filters = { tenant, action: given("action"), by: given("by"), target: given("target") };
  const cursor = given("cursor");
  const audit = useQuery({
    queryKey: ["audit", filters, cursor],
    queryFn: () => body(api.GET("/v1/audit", { params: { query: { ...filters, cursor, limit: PAGE_SIZE } } })),
    placeholderData: keepPreviousData,
    refetchInterval: unlessForbidden(LOOK_MS),
  });
  const isFiltered = [filters.action, filters.by, filters.target].some(Boolean);
  const next = audit.data?.next;
  return (
    <>
      <Filter filters={filters} change={(to) => go(auditAddress({ tenant, ...to }))} />
      {audit.error && <Trouble error={audit.error} />}
      {audit.data?.entries.length === 0 && (
        <p className="empty">{isFiltered ? "No line matches these filters." : "Nothing was done in this tenant yet."}</p>
      )}
      {audit.data && audit.data.entries.length > 0 && <Table entries={audit.data.entries} filters={filters} />}
      <nav className="pager" aria-label="Pages of the list">
        {cursor && (
          <button type="button" onClick={() => go(auditAddress(filters))}>
            Newest
          </button>
        )}
        {next && (
          <button type="button" onClick={() => go(auditAddress({ ...filters, cursor: next }))}>
            Older
          </button>
        )}
      </nav>
    </>
  );
}

function Filter({ filters, change }: { filters: Filters; change: (to: Filters) => void }) {
  return (
    <form
      key={auditAddress(filters)}
      className="filters"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        const given = new FormData(event.currentTarget);
        const text = (name: string) => String(given.get(name)).trim();
        change({ action: text("action"), by: text("by"), target: text("target") });
      }}
    >
      <label>
        Action
        <input name="action" defaultValue={filters.action} placeholder="run.started" maxLength={256} />
      </label>
      <label>
        By
        <input name="by" defaultValue={filters.by} placeholder="admin or ID/NAME" maxLength={256} />
      </label>
      <label>
        Target
        <input name="target" defaultValue={filters.target} placeholder="a run, a workflow, a key" maxLength={256} />
      </label>
      <button type="submit">Filter</button>
      {(filters.action || filters.by || filters.target) && (
        <button type="button" onClick={() => change({})}>
          Show all
        </button>
      )}
    </form>
  );
}

function Table({ entries, filters }: { entries: AuditEntry[]; filters: Filters }) {
  return (
    <table className="list audit">
      <thead>
        <tr>
          <th>Time</th>
          <th>By</th>
          <th>Action</th>
          <th>Target</th>
          <th>Outcome</th>
        </tr>
      </thead>
      <tbody>
        {entries.map((entry) => (
          <tr key={entry.id}>
            <td>
              <Time at={entry.at} />
            </td>
            <td>
              <Link href={auditAddress({ ...filters, by: entry.by })}>
                <Who name={entry.by} />
              </Link>
            </td>
            <td>
              <Link href={auditAddress({ ...filters, action: entry.action })}>{oneLine(entry.action)}</Link>
            </td>
            <td>
              {entry.target && (
                <Link href={auditAddress({ ...filters, target: entry.target })} className="id">
                  {oneLine(entry.target)}
                </Link>
              )}
            </td>
            <td data-label="Outcome">
              <details>
                <summary>
                  <Status value={entry.outcome || "unknown"} as={COLOURS[entry.outcome]} />
                </summary>
                <Facts
                  of={[
                    ...Object.entries(entry.detail).map(([name, text]): [string, string] => [
                      readable(oneLine(name)),
                      oneLine(text),
                    ]),
                    ["request", <span className="id">{oneLine(entry.request_id)}</span>],
                  ]}
                />
              </details>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
