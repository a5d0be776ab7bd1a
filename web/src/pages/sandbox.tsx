import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useLocation } from "wouter";

import { useAction } from "../api/action";
import { api, body, Problem, type Sandbox } from "../api/client";
import { useMay } from "../caller";
import { Facts, Time, Trouble, useTitle } from "../parts";
import { Commands } from "../sandbox/commands";
import { Files } from "../sandbox/files";
import { LEASES, LeaseLeft } from "../sandbox/lease";

const LOOK_MS = 5_000;

/** One sandbox: its lease, its commands and terminals, and its files. */
export function SandboxPage({ id }: { id: string }) {
  useTitle(id);
  const sandbox = useQuery({
    queryKey: ["sandbox", id],
    refetchInterval: LOOK_MS,
    queryFn: () => body(api.GET("/v1/sandboxes/{sandbox_id}", { params: { path: { sandbox_id: id } } })),
  });
  if (isGone(sandbox.error)) {
    return (
      <>
        <h1>
          <span className="id">{id}</span>
        </h1>
        <p className="empty">
          There is no such sandbox: it was removed, or its lease is over. <Link href="/sandboxes">To the sandboxes</Link>
        </p>
      </>
    );
  }
  if (sandbox.data === undefined) {
    return sandbox.error ? <Trouble error={sandbox.error} /> : <p role="status">Loading…</p>;
  }
  return (
    <>
      <Title sandbox={sandbox.data} />
      {sandbox.error && <Trouble error={sandbox.error} />}
      <Commands sandbox={id} />
      <Files sandbox={id} />
    </>
  );
}

const isGone = (error: unknown): boolean => error instanceof Problem && error.status === 404;

function Title({ sandbox }: { sandbox: Sandbox }) {
  const may = useMay();
  const queries = useQueryClient();
  const [, go] = useLocation();
  const { sandbox_id } = sandbox;
  const path = { params: { path: { sandbox_id } } };
  const extend = useAction({
    mutationFn: (lease_seconds: number) =>
      body(api.POST("/v1/sandboxes/{sandbox_id}:extend", { ...path, body: { lease_seconds } })),
    onSuccess: (extended) => queries.setQueryData(["sandbox", sandbox_id], extended),
  });
  const remove = useAction({
    mutationFn: () => api.DELETE("/v1/sandboxes/{sandbox_id}", path),
    onSuccess: () => go("/sandboxes"),
  });
  const troubles = [extend.error, remove.error].filter((error) => error !== null);
  return (
    <div className="title">
      <h1>
        <span className="id">{sandbox_id}</span>
      </h1>
      {may("sandboxes:write") && (
        <div className="actions">
          <form
            className="inline"
            onSubmit={(event) => {
              event.preventDefault();
              extend.mutate(Number(new FormData(event.currentTarget).get("seconds")));
            }}
          >
            <select name="seconds" aria-label="New lease">
              {LEASES.map(([seconds, text]) => (
                <option key={seconds} value={seconds}>
                  {text} from now
                </option>
              ))}
            </select>
            <button type="submit" disabled={extend.isPending}>
              Extend
            </button>
          </form>
          <button
            type="button"
            disabled={remove.isPending}
            onClick={() => window.confirm(`Remove ${sandbox_id} with all that runs in it and all of its files?`) && remove.mutate()}
          >
            Remove
          </button>
        </div>
      )}
      <Facts
        of={[
          ["Time left", <LeaseLeft until={sandbox.lease_expires_at} />],
          ["Image", <span className="id">{sandbox.image}</span>],
          ["Digest", <span className="id">{sandbox.image_digest}</span>],
          ["Isolated by", sandbox.runtime],
          ["Network", sandbox.network],
          ["Worker", sandbox.worker_id],
          ["Created", <Time at={sandbox.created_at} />],
        ]}
      />
      {troubles.map((error) => (
        <Trouble key={error.message} error={error} />
      ))}
    </div>
  );
}
