import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link, useSearchParams } from "wouter";

import { api, body, unlessForbidden } from "../api/client";
import { Time, Trouble, useAddress, useTitle } from "../parts";

const LOOK_MS = 5_000;
const PAGE_SIZE = 100;

export function WorkflowsPage() {
  useTitle("Workflows");
  const [search] = useSearchParams();
  const address = useAddress();
  const after = search.get("after") || undefined;
  const workflows = useQuery({
    queryKey: ["workflows", after],
    queryFn: () => body(api.GET("/v1/workflows", { params: { query: { after, limit: PAGE_SIZE } } })),
    placeholderData: keepPreviousData,
    refetchInterval: unlessForbidden(LOOK_MS),
  });
  return (
    <>
      <h1>Workflows</h1>
      {workflows.error && <Trouble error={workflows.error} />}
      {workflows.data?.workflows.length === 0 && (
        <p className="empty">
          {after ? (
            "No more workflows."
          ) : (
            <>
              No workflows yet. Apply a definition with <code>fumehood workflow apply FILE</code>.
            </>
          )}
        </p>
      )}
      {workflows.data !== undefined && workflows.data.workflows.length > 0 && (
        <table className="list">
          <thead>
            <tr>
              <th>Workflow</th>
              <th>Version</th>
              <th>Applied</th>
            </tr>
          </thead>
          <tbody>
            {workflows.data.workflows.map(({ name, version, applied_at }) => (
              <tr key={name}>
                <td>
                  <Link href={`/workflows/${name}`} className="id">
                    {name}
                  </Link>
                </td>
                <td data-label="Version">{version}</td>
                <td data-label="Applied">
                  <Time at={applied_at} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <nav className="pager" aria-label="Pages of the list">
        {after && <Link href="/workflows">First page</Link>}
        {workflows.data?.next && <Link href={address("after", workflows.data.next)}>Next page</Link>}
      </nav>
    </>
  );
}
