import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation, useSearchParams } from "wouter";

import { useAction } from "../api/action";
import { api, body, hasNoAnswer, type JobType, type RunSummary, unlessForbidden } from "../api/client";
import { useEvents, useRefresh } from "../api/events";
import { useIdempotencyKey } from "../api/idempotency";
import { useMay } from "../caller";
import { useJob } from "../job/job";
import { duration, jsonIn, oneLine, Status, Time, Trouble, useAddress, useNow, useTitle, Value } from "../parts";
import { RUN_CHANGES } from "../run/actions";
import { JOB_WORKFLOW } from "../run/definition";

const PAGE_SIZE = 10; // each job of the page is fetched by itself
const LOOK_MS = 5_000; // the list comes from an index, which is updated a moment after the event

export function JobsPage() {
  useTitle("Jobs");
  const may = useMay();
  const queries = useQueryClient();
  const [search] = useSearchParams();
  const address = useAddress();
  const cursor = search.get("cursor") || undefined;
  const [isMaking, setMaking] = useState(false);
  const runs = useQuery({
    queryKey: ["jobs", cursor],
    queryFn: () =>
      body(api.GET("/v1/runs", { params: { query: { workflow: JOB_WORKFLOW, cursor, limit: PAGE_SIZE } } })),
    placeholderData: keepPreviousData,
    refetchInterval: unlessForbidden(LOOK_MS),
  });
  const types = useQuery({ queryKey: ["job-types"], queryFn: () => body(api.GET("/v1/job-types")) });
  const refresh = useRefresh("jobs");
  useEvents(`/v1/events?workflow=${JOB_WORKFLOW}&type=${RUN_CHANGES}`, (news) => {
    for (const { data } of news) void queries.invalidateQueries({ queryKey: ["job", data.run_id] });
    refresh();
  });
  return (
    <>
      <div className="section-head">
        <h1>Jobs</h1>
        {may("runs:write") && (
          <button type="button" aria-expanded={isMaking} onClick={() => setMaking(!isMaking)}>
            New job
          </button>
        )}
      </div>
      {isMaking && types.data && <NewJob types={types.data.job_types} />}
      {types.error && <Trouble error={types.error} />}
      {runs.error && <Trouble error={runs.error} />}
      {runs.data && <Table runs={runs.data.runs} isFirst={cursor === undefined} />}
      <nav className="pager" aria-label="Pages of the list">
        {cursor && <Link href="/jobs">Newest</Link>}
        {runs.data?.next && <Link href={address("cursor", runs.data.next)}>Older</Link>}
      </nav>
      {types.data && <JobTypes types={types.data.job_types} />}
    </>
  );
}

function Table({ runs, isFirst }: { runs: RunSummary[]; isFirst: boolean }) {
  const now = useNow(runs.some(({ ended_at }) => ended_at === null));
  if (runs.length === 0) {
    return (
      <p className="empty">
        {isFirst ? (
          <>
            No jobs yet. Submit one here, with <code>fumehood job submit TYPE FILE</code> or from a program. A job is
            done by as many providers as it asks for, and has a verdict over their answers.
          </>
        ) : (
          "No more jobs."
        )}
      </p>
    );
  }
  return (
    <table className="list">
      <thead>
        <tr>
          <th>Job</th>
          <th>Type</th>
          <th>Status</th>
          <th>Started</th>
          <th>Took</th>
        </tr>
      </thead>
      <tbody>
        {runs.map((run) => (
          <Row key={run.run_id} run={run} now={now} />
        ))}
      </tbody>
    </table>
  );
}

/** The status is the job's own: the run of a disputed job has succeeded. */
function Row({ run: { run_id, started_at, ended_at }, now }: { run: RunSummary; now: number }) {
  const job = useJob(run_id);
  const error = job.data?.error ?? job.error;
  return (
    <tr>
      <td>
        <Link href={`/jobs/${run_id}`} className="id">
          {run_id}
        </Link>
      </td>
      <td>{job.data?.job_type}</td>
      <td>
        {job.data && <Status value={job.data.status} />}
        {error && <span className="why">{oneLine(error.message)}</span>}
      </td>
      <td data-label="Started">
        <Time at={started_at} />
      </td>
      <td data-label="Took">{duration((ended_at ? Date.parse(ended_at) : now) - Date.parse(started_at))}</td>
    </tr>
  );
}

function JobTypes({ types }: { types: JobType[] }) {
  return (
    <details className="more">
      <summary>Job types</summary>
      <table className="list">
        <thead>
          <tr>
            <th>Type</th>
            <th>Version</th>
            <th>About</th>
          </tr>
        </thead>
        <tbody>
          {types.map(({ name, version, about }) => (
            <tr key={name}>
              <td className="id">{name}</td>
              <td>{version}</td>
              <td>{about}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}

function NewJob({ types }: { types: JobType[] }) {
  const [, go] = useLocation();
  const keyFor = useIdempotencyKey();
  const [name, setName] = useState(types[0]?.name);
  const submit = useAction({
    mutationFn: (payload: string) =>
      body(
        api.POST("/v1/jobs", {
          params: { header: { "Idempotency-Key": keyFor(`${name} ${payload}`) } },
          body: { job_type: name ?? "", payload: jsonIn(payload) as Record<string, unknown> },
        }),
      ),
    onSuccess: ({ job_id, ignored }) => go(`/jobs/${job_id}`, { state: { ignored } }),
  });
  const type = types.find((one) => one.name === name);
  return (
    <form
      className="filters panel"
      aria-label="New job"
      onSubmit={(event) => {
        event.preventDefault();
        submit.mutate(String(new FormData(event.currentTarget).get("payload")));
      }}
    >
      <label>
        Type
        <select value={name} autoFocus onChange={(event) => setName(event.target.value)}>
          {types.map((one) => (
            <option key={one.name} value={one.name}>
              {one.name}
            </option>
          ))}
        </select>
      </label>
      <p className="hint wide">{type?.about}</p>
      <label className="wide">
        Payload, as JSON
        <textarea name="payload" className="id" rows={10} required spellCheck={false} placeholder="{ … }" />
      </label>
      {type?.request_schema !== undefined && (
        <details className="wide">
          <summary>What the payload may contain</summary>
          <Value value={type.request_schema} />
        </details>
      )}
      <button type="submit" className="primary" disabled={submit.isPending}>
        {submit.isPending ? "Submitting…" : "Submit"}
      </button>
      {submit.error && <Trouble error={submit.error} />}
      {hasNoAnswer(submit.error) && (
        <p className="hint wide">The job may have been accepted. Submit the same again to get the same job.</p>
      )}
    </form>
  );
}
