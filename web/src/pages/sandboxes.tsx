import { useState } from "react";
import { Link, useLocation, useSearchParams } from "wouter";

import { useAction } from "../api/action";
import { api, body, type NetworkProfile, type SandboxItem } from "../api/client";
import { useSandboxes } from "../api/lists";
import { useMay } from "../caller";
import { Time, Trouble, useAddress, useTitle } from "../parts";
import { LEASES, LeaseLeft } from "../sandbox/lease";

const NETWORKS = {
  "deny-all": "none",
  "dns-only": "DNS only",
  restricted: "what the policy allows",
  full: "every public address",
} satisfies Partial<Record<NetworkProfile, string>>;

export function SandboxesPage() {
  useTitle("Sandboxes");
  const may = useMay();
  const [search] = useSearchParams();
  const address = useAddress();
  const after = search.get("after") || undefined;
  const [isMaking, setMaking] = useState(false);
  const sandboxes = useSandboxes(after);
  return (
    <>
      <div className="section-head">
        <h1>Sandboxes</h1>
        {may("sandboxes:write") && (
          <button type="button" aria-expanded={isMaking} onClick={() => setMaking(!isMaking)}>
            New sandbox
          </button>
        )}
      </div>
      {isMaking && <NewSandbox />}
      {sandboxes.error && <Trouble error={sandboxes.error} />}
      {sandboxes.data && <Table sandboxes={sandboxes.data.sandboxes} isFirst={after === undefined} />}
      <nav className="pager" aria-label="Pages of the list">
        {after && <Link href="/sandboxes">First page</Link>}
        {sandboxes.data?.next && <Link href={address("after", sandboxes.data.next)}>Next page</Link>}
      </nav>
    </>
  );
}

function Table({ sandboxes, isFirst }: { sandboxes: SandboxItem[]; isFirst: boolean }) {
  if (sandboxes.length === 0) {
    return (
      <p className="empty">
        {isFirst ? (
          <>
            No sandboxes yet. Create one here, with <code>fumehood session new IMAGE</code> or from a program.
            Sandboxes of runs and jobs are not shown here: they end with their step.
          </>
        ) : (
          "No more sandboxes."
        )}
      </p>
    );
  }
  return (
    <table className="list">
      <thead>
        <tr>
          <th>Sandbox</th>
          <th>Image</th>
          <th>Time left</th>
          <th>Worker</th>
          <th>Created</th>
        </tr>
      </thead>
      <tbody>
        {sandboxes.map((sandbox) => (
          <tr key={sandbox.sandbox_id}>
            <td>
              <Link href={`/sandboxes/${sandbox.sandbox_id}`} className="id">
                {sandbox.sandbox_id}
              </Link>
            </td>
            <td className="id">{sandbox.image}</td>
            <td data-label="Time left">
              <LeaseLeft until={sandbox.lease_expires_at} />
            </td>
            <td data-label="Worker">{sandbox.worker_id}</td>
            <td data-label="Created">
              <Time at={sandbox.created_at} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function NewSandbox() {
  const [, go] = useLocation();
  const [name] = useState(() => `sbx-${crypto.randomUUID()}`); // asked for again, it is the same sandbox
  const create = useAction({
    mutationFn: (form: FormData) => {
      const text = (name: string) => String(form.get(name)).trim() || undefined;
      return body(
        api.POST("/v1/sandboxes", {
          body: {
            sandbox_id: text("name") ?? name,
            image: text("image"),
            lease_seconds: Number(form.get("lease")),
            network: text("network") as NetworkProfile,
            env: {},
          },
        }),
      );
    },
    onSuccess: ({ sandbox_id, created }) => created !== false && go(`/sandboxes/${sandbox_id}`),
  });
  return (
    <form
      className="filters panel"
      aria-label="New sandbox"
      onSubmit={(event) => {
        event.preventDefault();
        create.mutate(new FormData(event.currentTarget));
      }}
    >
      <label>
        Image
        <input name="image" placeholder="worker default" maxLength={1024} autoFocus />
      </label>
      <label>
        Name
        <input name="name" placeholder="a random one" pattern="[A-Za-z0-9_\-]{1,128}" title="letters, digits, - and _" />
      </label>
      <label>
        Network
        <select name="network">
          {Object.entries(NETWORKS).map(([profile, text]) => (
            <option key={profile} value={profile}>
              {text}
            </option>
          ))}
        </select>
      </label>
      <label>
        Lease
        <select name="lease" defaultValue={1_800}>
          {LEASES.map(([seconds, text]) => (
            <option key={seconds} value={seconds}>
              {text}
            </option>
          ))}
        </select>
      </label>
      <button type="submit" className="primary" disabled={create.isPending}>
        {create.isPending ? "Creating…" : "Create"}
      </button>
      {create.error && <Trouble error={create.error} />}
      {create.data?.created === false && (
        <p role="status">
          There was a sandbox of this name already: <Link href={`/sandboxes/${create.data.sandbox_id}`}>open it</Link>.
        </p>
      )}
    </form>
  );
}
