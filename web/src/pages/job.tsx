import { useQueryClient } from "@tanstack/react-query";
import { Link } from "wouter";
import { useHistoryState } from "wouter/use-browser-location";

import { useAction } from "../api/action";
import { api, body, type Job } from "../api/client";
import { useEvents, useRefresh } from "../api/events";
import { useMay } from "../caller";
import { Answer } from "../job/answer";
import { Candidates, JudgePanel } from "../job/candidates";
import { hasEnded, isMissing, useJob } from "../job/job";
import { verdictInWords } from "../job/verdict";
import { duration, Facts, oneLine, readable, Status, Time, Trouble, useNow, useTitle } from "../parts";
import { saveJson } from "../save";

/** One job: what was asked for, the verdict, and what each provider answered. */
export function JobPage({ id }: { id: string }) {
  useTitle(id);
  const job = useJob(id);
  if (job.data === undefined) {
    if (!isMissing(job.error)) return job.error ? <Trouble error={job.error} /> : <p role="status">Loading…</p>;
    return (
      <>
        <h1>
          <span className="id">{id}</span>
        </h1>
        <Trouble error={job.error!} />
        <p>
          <Link href="/jobs">To the jobs</Link>
        </p>
      </>
    );
  }
  const { verdict, result, error, receipts } = job.data;
  return (
    <>
      {!hasEnded(job.data) && <Following id={id} />}
      <Title job={job.data} />
      {job.error && <Trouble error={job.error} />}
      {error && (
        <p className="trouble" role="note">
          <code>{oneLine(error.code)}</code> {oneLine(error.message)}
        </p>
      )}
      <h2>Verdict</h2>
      <p role="status">{verdict ? verdictInWords(verdict) : withoutVerdict(job.data)}</p>
      {result && (
        <section aria-label="Result">
          <h2>Result</h2>
          <Answer of={result} />
        </section>
      )}
      {verdict && <Candidates job={id} verdict={verdict} />}
      {verdict && <JudgePanel job={id} verdict={verdict} />}
      {receipts.length > 0 && <Proof job={job.data} />}
    </>
  );
}

function withoutVerdict({ status }: Job): string {
  if (status === "queued") return "No provider has begun it yet.";
  return status === "running" ? "Its providers are at work." : "It ended without one.";
}

/** Fetches the job again at each event of its run. */
function Following({ id }: { id: string }) {
  useEvents(`/v1/runs/${encodeURIComponent(id)}/events`, useRefresh("job", id));
  return null;
}

function Title({ job }: { job: Job }) {
  const may = useMay();
  const queries = useQueryClient();
  const submitted = useHistoryState<{ ignored?: string[] } | null>(); // only the answer to a submission has it
  const cancel = useAction({
    mutationFn: () => body(api.POST("/v1/jobs/{job_id}:cancel", { params: { path: { job_id: job.job_id } } })),
    onSettled: () => queries.invalidateQueries({ queryKey: ["job", job.job_id] }),
  });
  const isOver = hasEnded(job);
  const now = useNow(!isOver);
  return (
    <div className="title">
      <h1>
        <span className="id">{job.job_id}</span> <Status value={job.status} />
      </h1>
      <div className="actions">
        {!isOver && may("runs:write") && (
          <button type="button" disabled={cancel.isPending} onClick={() => cancel.mutate()}>
            Cancel
          </button>
        )}
        {cancel.error && <Trouble error={cancel.error} />}
      </div>
      <Facts
        of={[
          ["Type", `${job.job_type}, version ${job.schema_version}`],
          ["Verification", verification(job)],
          ["Judge model", job.verification.judge_model && oneLine(job.verification.judge_model)],
          ["Submitted by", job.submitted_by && oneLine(job.submitted_by)],
          ["Started", job.started_at && <Time at={job.started_at} />],
          ["Ended", job.ended_at && <Time at={job.ended_at} />],
          [
            "Took",
            job.started_at && duration((job.ended_at ? Date.parse(job.ended_at) : now) - Date.parse(job.started_at)),
          ],
          ["Run", <Link href={`/runs/${job.job_id}`}>steps and input</Link>],
          ["Hash of the request", <span className="id">{job.request_sha256}</span>],
          ["Ignored fields", submitted?.ignored?.map(oneLine).join(", ")],
        ]}
      />
    </div>
  );
}

function verification({ verification: { redundancy, adjudication, mode } }: Job): string {
  const providers = redundancy === 1 ? "1 provider" : `${redundancy} providers`;
  return [providers, ...(adjudication === "none" ? [] : [readable(adjudication)]), mode].join(", ");
}

/** All that `fumehood verify` needs, but the root that its user relies on. */
function Proof({ job }: { job: Job }) {
  const name = `${job.job_id}.json`;
  return (
    <section aria-label="Receipts">
      <h2>Receipts</h2>
      <p className="hint">
        Each provider signed its answer, and the server checked the receipts for its verdict. To rely on nothing that
        the server says, save the job and check it on your own machine, with the root that you have pinned and the request
        that you made: <code>fumehood verify {name} --request REQUEST.json</code>
      </p>
      <button type="button" onClick={() => saveJson(job, name)}>
        Save the job with {job.receipts.length === 1 ? "its receipt" : `its ${job.receipts.length} receipts`}
      </button>
    </section>
  );
}
