import { useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { Link, useSearchParams } from "wouter";

import { useAction } from "../api/action";
import { api, body, type Provider, type TaskType, unlessForbidden, type Worker } from "../api/client";
import { useTaskTypes, useWorkers } from "../api/lists";
import { useMay } from "../caller";
import { Facts, oneLine, readable, Status, Time, TRANSPORTS, Trouble, useAddress, useTitle } from "../parts";

const LOOK_MS = 3_000;

/** Who takes tasks, what waits for them, and how the providers of jobs stand. */
export function WorkersPage() {
  useTitle("Workers");
  const [search] = useSearchParams();
  const address = useAddress();
  const after = search.get("after") || undefined;
  const workers = useWorkers(after);
  const types = useTaskTypes();
  const providers = useQuery({
    queryKey: ["providers"],
    queryFn: () => body(api.GET("/v1/providers")),
    refetchInterval: unlessForbidden(LOOK_MS),
  });
  const isWhole = workers.data !== undefined && !workers.isPlaceholderData && !workers.data.next && after === undefined;
  return (
    <>
      <h1>Workers</h1>
      {workers.error && <Trouble error={workers.error} />}
      {workers.data && <Workers workers={workers.data.workers} />}
      <nav className="pager" aria-label="Pages of the list">
        {after && <Link href="/workers">First page</Link>}
        {workers.data?.next && <Link href={address("after", workers.data.next)}>Next page</Link>}
      </nav>
      <h2>Queues</h2>
      {types.error && <Trouble error={types.error} />}
      {types.data && <Queues types={types.data.task_types} workers={isWhole ? workers.data.workers : undefined} />}
      {types.data?.next && <p className="hint">There are more; <code>fumehood worker ls</code> lists all.</p>}
      <h2>Providers of jobs</h2>
      {providers.error && <Trouble error={providers.error} />}
      {providers.data && <Providers providers={providers.data.providers} />}
    </>
  );
}

function Workers({ workers }: { workers: Worker[] }) {
  if (workers.length === 0) return <p className="empty">No worker was there within the last minute.</p>;
  return (
    <table className="list">
      <thead>
        <tr>
          <th>Worker</th>
          <th>Takes</th>
          <th>At once</th>
          <th>Comes over</th>
          <th>Says of itself</th>
          <th aria-label="Actions" />
        </tr>
      </thead>
      <tbody>
        {workers.map((worker) => (
          <tr key={worker.worker_id}>
            <td>
              <span className="id">{worker.worker_id}</span>{" "}
              {isLeaving(worker) && <Status value="draining" as="waiting" />}
            </td>
            <td className="types">
              {worker.task_types.map((type) => (
                <code key={type} className="line">
                  {type}
                </code>
              ))}
            </td>
            <td data-label="At once">{worker.max_tasks}</td>
            <td data-label="Comes over">{TRANSPORTS[worker.transport] ?? worker.transport}</td>
            <td>
              <details>
                <summary>{oneLine(`${worker.language} ${worker.metadata.version ?? worker.metadata.software ?? ""}`)}</summary>
                <Facts
                  of={Object.entries(worker.metadata).map(([name, value]) => [
                    oneLine(readable(name)),
                    <span className="id">{oneLine(value)}</span>,
                  ])}
                />
              </details>
            </td>
            <td>
              <Drain worker={worker} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** The console says this of workers that dialled in; of others, it would be their own words. */
const isLeaving = ({ transport, metadata }: Worker): boolean => transport === "grpc" && metadata.draining !== undefined;

/** Sends a worker home, where it can be sent: one that came over NATS is stopped on its machine. */
function Drain({ worker }: { worker: Worker }) {
  const { worker_id, transport } = worker;
  const may = useMay();
  const queries = useQueryClient();
  const drain = useAction({
    mutationFn: () => api.DELETE("/v1/workers/{worker_id}", { params: { path: { worker_id } } }),
    onSettled: () => queries.invalidateQueries({ queryKey: ["workers"] }),
  });
  if (!(transport === "bridge" || (transport === "grpc" && may("*"))) || isLeaving(worker)) return null;
  return (
    <>
      <button
        type="button"
        aria-label={`Drain ${worker_id}`}
        disabled={drain.isPending}
        onClick={() =>
          window.confirm(`Drain ${worker_id}? It ends what it has, and takes nothing more.`) && drain.mutate()
        }
      >
        Drain
      </button>
      {drain.error && <Trouble error={drain.error} />}
    </>
  );
}

/** What waits, by type of task. With all `workers`, also whether one takes it. */
function Queues({ types: listed, workers }: { types: TaskType[]; workers?: Worker[] }) {
  const may = useMay();
  const [edited, setEdited] = useState<string>();
  const isListed = edited === undefined || listed.some(({ task_type }) => task_type === edited);
  const types = isListed ? listed : [...listed, { task_type: edited, waiting: 0 }]; // its form stays open
  if (types.length === 0) return <p className="empty">Nothing waits, and no task type has a limit.</p>;
  return (
    <table className="list">
      <thead>
        <tr>
          <th>Task type</th>
          <th>Waiting</th>
          {workers && <th>Workers</th>}
          <th>Limit</th>
        </tr>
      </thead>
      <tbody>
        {types.map((type) => {
          const takers = workers?.filter(
            ({ task_types, transport }) => transport !== "grpc" && task_types.includes(type.task_type),
          ).length;
          return (
            <tr key={type.task_type}>
              <td className="id">{type.task_type}</td>
              <td data-label="Waiting">{type.waiting}</td>
              {takers !== undefined && (
                <td data-label="Workers">{takers > 0 ? takers : <Status value="none takes it" as={type.waiting > 0 ? "failed" : ""} />}</td>
              )}
              <td data-label="Limit">{may("*") ? <Limit type={type} isOpen={edited === type.task_type} edit={setEdited} /> : limitOf(type)}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

const limitOf = ({ limit }: TaskType): string =>
  limit === undefined ? "none" : limit.burst > 1 ? `${limit.rate}, ${limit.burst} at once` : limit.rate;

function Limit({ type, isOpen, edit }: { type: TaskType; isOpen: boolean; edit: (task_type?: string) => void }) {
  const queries = useQueryClient();
  const path = { params: { path: { task_type: type.task_type } } };
  const set = useAction({
    mutationFn: async (form: FormData | null) => {
      if (form === null) return api.DELETE("/v1/task-types/{task_type}/limit", path);
      const limit = { rate: String(form.get("rate")).trim(), burst: Number(form.get("burst")) };
      return api.PUT("/v1/task-types/{task_type}/limit", { ...path, body: limit });
    },
    onSuccess: () => {
      edit(undefined);
      return queries.invalidateQueries({ queryKey: ["task-types"] });
    },
  });
  if (!isOpen) {
    return (
      <>
        {limitOf(type)}{" "}
        <button type="button" className="plain" aria-label={`Change the limit of ${type.task_type}`} onClick={() => edit(type.task_type)}>
          change
        </button>
      </>
    );
  }
  return (
    <form
      className="filters"
      aria-label={`Limit of ${type.task_type}`}
      onSubmit={(event) => {
        event.preventDefault();
        set.mutate(new FormData(event.currentTarget));
      }}
    >
      <label>
        Rate
        <input name="rate" required defaultValue={type.limit?.rate} placeholder="10/s" size={8} autoFocus />
      </label>
      <label>
        At once
        <input name="burst" type="number" required min={1} defaultValue={type.limit?.burst ?? 1} />
      </label>
      <button type="submit" className="primary" disabled={set.isPending}>
        Save
      </button>
      {type.limit && (
        <button type="button" disabled={set.isPending} onClick={() => set.mutate(null)}>
          Remove
        </button>
      )}
      <button type="button" onClick={() => edit(undefined)}>
        Cancel
      </button>
      {set.error && <Trouble error={set.error} />}
    </form>
  );
}

const COUNTS = ["agreed", "disagreed", "disputed", "rejected", "failed", "answered"];

function Providers({ providers }: { providers: Provider[] }) {
  const may = useMay();
  if (providers.length === 0) return <p className="empty">No provider of jobs has been here.</p>;
  return (
    <table className="list">
      <thead>
        <tr>
          <th>Provider</th>
          <th>Job types</th>
          <th>Its answers</th>
          <th>Last jobs</th>
          {may("*") && <th aria-label="Actions" />}
        </tr>
      </thead>
      <tbody>
        {providers.map((provider) => (
          <tr key={provider.worker}>
            <td>
              <span className="id">{provider.worker}</span> <Standing provider={provider} />
            </td>
            <td className="types">
              {provider.job_types.map((type) => (
                <code key={type} className="line">
                  {type}
                </code>
              ))}
            </td>
            <td data-label="Its answers">
              {COUNTS.filter((name) => provider.counts[name])
                .map((name) => `${provider.counts[name]} ${name}`)
                .join(", ") || "none yet"}
            </td>
            <td data-label="Last jobs">{provider.recent.length > 0 && <Recent provider={provider} />}</td>
            {may("*") && (
              <td>
                <SetAside provider={provider} />
              </td>
            )}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Standing({ provider: { present, set_aside } }: { provider: Provider }): ReactNode {
  if (set_aside) {
    return (
      <>
        <Status value="set aside" as="failed" />
        <span className="why">
          {oneLine(set_aside.reason)} ({set_aside.by}, <Time at={set_aside.at} />)
        </span>
      </>
    );
  }
  return present ? <Status value="there" as="succeeded" /> : <Status value="away" />;
}

function Recent({ provider: { recent } }: { provider: Provider }) {
  return (
    <details>
      <summary>{recent.length}</summary>
      <ul className="plain">
        {recent.map(({ job_id, said, at }) => (
          <li key={`${job_id} ${at}`}>
            <Link href={`/jobs/${job_id}`}>{job_id}</Link> {said}, <Time at={at} />
          </li>
        ))}
      </ul>
    </details>
  );
}

function SetAside({ provider: { worker, set_aside } }: { provider: Provider }) {
  const queries = useQueryClient();
  const path = { params: { path: { worker_id: worker } } };
  const act = useAction<unknown, string>({
    mutationFn: (reason: string) =>
      set_aside
        ? api.POST("/v1/providers/{worker_id}:restore", path)
        : api.POST("/v1/providers/{worker_id}:set-aside", { ...path, body: { reason } }),
    onSettled: () => queries.invalidateQueries({ queryKey: ["providers"] }),
  });
  const turn = () => {
    const reason = set_aside ? "" : window.prompt(`Why is ${worker} set aside? Others see it.`);
    if (reason !== null) act.mutate(reason);
  };
  return (
    <>
      <button
        type="button"
        aria-label={`${set_aside ? "Restore" : "Set aside"} ${worker}`}
        disabled={act.isPending}
        onClick={turn}
      >
        {set_aside ? "Restore" : "Set aside"}
      </button>
      {act.error && <Trouble error={act.error} />}
    </>
  );
}
