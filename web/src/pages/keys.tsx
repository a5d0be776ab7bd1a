import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { useContext, useState } from "react";
import { Link, useSearchParams } from "wouter";

import { useAction } from "../api/action";
import { api, body, type CreatedKey, type Key, unlessForbidden } from "../api/client";
import { CallerContext, useMay } from "../caller";
import { auditAddress, AuditList } from "../keys/audit";
import { NewKey, NewKeyForm } from "../keys/new-key";
import { keysAddress, LOOK_MS, TenantChoice, Who } from "../keys/parts";
import { Status, Time, Trouble, useAddress, useNow, useTitle } from "../parts";

const PAGE_SIZE = 50;

/** The keys of a tenant, or its audit list. */
export function KeysPage() {
  const [search] = useSearchParams();
  const tenant = search.get("tenant") || undefined; // without one, the server takes the caller's own
  return search.get("view") === "audit" ? <AuditView tenant={tenant} /> : <KeysView tenant={tenant} />;
}

function AuditView({ tenant }: { tenant?: string }) {
  useTitle("Audit list");
  return (
    <>
      <div className="section-head">
        <h1>Audit list</h1>
        <TenantChoice view="audit" />
        <Link href={keysAddress({ tenant })}>Keys</Link>
      </div>
      <AuditList key={tenant} tenant={tenant} />
    </>
  );
}

function KeysView({ tenant }: { tenant?: string }) {
  useTitle("Keys");
  const may = useMay();
  const [panel, setPanel] = useState<"form" | CreatedKey | null>(null);
  return (
    <>
      <div className="section-head">
        <h1>Keys</h1>
        <TenantChoice />
        {may("keys") && (panel === null || panel === "form") && (
          <button type="button" aria-expanded={panel === "form"} onClick={() => setPanel(panel ? null : "form")}>
            New key
          </button>
        )}
        <Link href={auditAddress({ tenant })}>Audit list</Link>
      </div>
      {panel === "form" && <NewKeyForm key={`form ${tenant}`} tenant={tenant} created={setPanel} />}
      {panel !== null && panel !== "form" && <NewKey created={panel} close={() => setPanel(null)} />}
      <KeyList key={tenant} tenant={tenant} />
    </>
  );
}

function KeyList({ tenant }: { tenant?: string }) {
  const [search] = useSearchParams();
  const address = useAddress();
  const after = search.get("after") || undefined;
  const keys = useQuery({
    queryKey: ["keys", tenant, after],
    queryFn: () => body(api.GET("/v1/keys", { params: { query: { tenant, after, limit: PAGE_SIZE } } })),
    placeholderData: keepPreviousData,
    refetchInterval: unlessForbidden(LOOK_MS),
  });
  return (
    <>
      {keys.error && <Trouble error={keys.error} />}
      {keys.data && <Table keys={keys.data.keys} isFirst={after === undefined} tenant={tenant} />}
      <nav className="pager" aria-label="Pages of the list">
        {after && <Link href={keysAddress({ tenant })}>First page</Link>}
        {keys.data?.next && <Link href={address("after", keys.data.next)}>Next page</Link>}
      </nav>
    </>
  );
}

function Table({ keys, isFirst, tenant }: { keys: Key[]; isFirst: boolean; tenant?: string }) {
  const may = useMay();
  const caller = useContext(CallerContext);
  const queries = useQueryClient();
  const now = useNow(keys.some(({ expires_at }) => expires_at !== null));
  const revoke = useAction({
    mutationFn: ({ id }: Key) => api.DELETE("/v1/keys/{key_id}", { params: { path: { key_id: id } } }),
    onSettled: () => queries.invalidateQueries({ queryKey: ["keys"] }),
  });
  const ask = (key: Key) => {
    const isOwn = caller?.name === whoIs(key);
    const more = isOwn ? "You are signed in with it, and will be signed out." : "It cannot be used any more from then on.";
    if (window.confirm(`Revoke the key ${key.name} (${key.id})? ${more}`)) revoke.mutate(key);
  };
  return (
    <>
      {revoke.error && <Trouble error={revoke.error} />}
      {keys.length === 0 ? (
        <p className="empty">{isFirst ? "This tenant has no keys." : "No more keys."}</p>
      ) : (
        <table className="list">
          <thead>
            <tr>
              <th>Key</th>
              <th>Scopes</th>
              <th>Created</th>
              <th>By</th>
              <th>Expires</th>
              <th aria-label="Actions" />
            </tr>
          </thead>
          <tbody>
            {keys.map((key) => (
              <tr key={key.id}>
                <td>
                  <Who name={whoIs(key)} />
                </td>
                <td>
                  <code>{key.scopes.join(" ")}</code>
                </td>
                <td data-label="Created">
                  <Time at={key.created_at} />
                </td>
                <td data-label="By">
                  <Who name={key.created_by} />
                </td>
                <td data-label="Expires">
                  {key.expires_at === null ? (
                    "never"
                  ) : (
                    <>
                      <Time at={key.expires_at} />{" "}
                      {Date.parse(key.expires_at) <= now && <Status value="expired" as="failed" />}
                    </>
                  )}
                </td>
                <td>
                  <div className="actions">
                    <Link href={auditAddress({ tenant, by: whoIs(key) })} aria-label={`Activity of ${key.name}`}>
                      Activity
                    </Link>
                    {key.scopes.every(may) && (
                      <button
                        type="button"
                        className="plain"
                        aria-label={`Revoke ${key.name}`}
                        disabled={revoke.isPending}
                        onClick={() => ask(key)}
                      >
                        Revoke
                      </button>
                    )}
                  </div>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}

/** A key as histories and the audit list name it. */
const whoIs = ({ id, name }: Key) => `${id}/${name}`;
