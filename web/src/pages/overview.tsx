import { useQuery } from "@tanstack/react-query";
import { Link, useSearchParams } from "wouter";

import { api, body, type RunPhase, type RunStatistics, serverTime, unlessForbidden } from "../api/client";
import { useSandboxes, useTaskTypes, useWorkers } from "../api/lists";
import { useMay } from "../caller";
import { duration, Facts, readable, Status, TRANSPORTS, Trouble, useAddress, useTitle } from "../parts";
import { BUILT_IN } from "../run/definition";

const LOOK_MS = 5_000;

const WINDOWS = {
  hour: "Last hour",
  day: "Last 24 hours",
  week: "Last 7 days",
  month: "Last 30 days",
} as const;
type Window = keyof typeof WINDOWS;

/** In the order in which they are stacked, from the bottom. */
const STATUSES = ["succeeded", "running", "cancelled", "timed_out", "failed"] as const satisfies readonly RunPhase[];

/** How the tenant's runs went, and what there is to run them. */
export function OverviewPage() {
  useTitle("Overview");
  const may = useMay();
  const [search] = useSearchParams();
  const address = useAddress();
  const asked = search.get("window") ?? "";
  const window = (asked in WINDOWS ? asked : "day") as Window;
  const statistics = useQuery({
    queryKey: ["statistics", window],
    queryFn: () => body(api.GET("/v1/run-statistics", { params: { query: { window } } })),
    refetchInterval: unlessForbidden(LOOK_MS),
  });
  return (
    <>
      <div className="section-head">
        <h1>Overview</h1>
        <nav className="choices" aria-label="Window of time">
          {Object.entries(WINDOWS).map(([name, words]) => (
            <Link
              key={name}
              href={address("window", name)}
              className={name === window ? "active" : ""}
              aria-current={name === window}
            >
              {words}
            </Link>
          ))}
        </nav>
      </div>
      {statistics.error && <Trouble error={statistics.error} />}
      {statistics.isPending && <p role="status">Loading…</p>}
      {statistics.data && (
        <>
          <p className="hint">Runs that started in this time, by the status that they have now.</p>
          <Totals statistics={statistics.data} />
          <Chart statistics={statistics.data} window={window} />
          <div className="columns">
            <Failing statistics={statistics.data} />
            <Slowest statistics={statistics.data} />
          </div>
        </>
      )}
      {may("workers") && <Capacity />}
      {may("sandboxes:read") && <Sandboxes />}
    </>
  );
}

const count = (statistics: RunStatistics, status: RunPhase) =>
  statistics.intervals.reduce((sum, { counts }) => sum + (counts[status] ?? 0), 0);

function Totals({ statistics }: { statistics: RunStatistics }) {
  return (
    <Facts
      className="facts totals"
      of={STATUSES.map((status) => {
        const runs = count(statistics, status);
        return [
          readable(status),
          <Link
            href={`/runs?${new URLSearchParams({ status, started_after: statistics.since })}`}
            className={`status ${status}`}
            aria-label={`${runs} ${readable(status)}`}
          >
            {runs}
          </Link>,
        ];
      })}
    />
  );
}

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const WIDTH = 1_000;
const HEIGHT = 160;
const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const DATE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** Runs by when they started, each bar stacked by the status that they have now. */
function Chart({ statistics, window }: { statistics: RunStatistics; window: Window }) {
  const since = Date.parse(statistics.since);
  const width = statistics.interval_seconds * 1_000;
  const bars = statistics.intervals.map(({ at, counts }) => ({
    at: Date.parse(at),
    counts,
    runs: Object.values(counts).reduce((sum, one) => sum + one, 0),
  }));
  const end = Math.max(serverTime(), ...bars.map(({ at }) => at + 1));
  const places = Math.max(1, Math.ceil((end - since) / width));
  const highest = Math.max(1, ...bars.map(({ runs }) => runs));
  const all = bars.reduce((sum, { runs }) => sum + runs, 0);
  const slot = WIDTH / places;
  const interval = width < HOUR_MS ? `${width / MINUTE_MS} min` : `${width / HOUR_MS} h`;
  const label = (at: number) => (window === "hour" ? CLOCK : DATE).format(at);
  return (
    <figure className="chart">
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${WINDOWS[window]}: ${all} runs, at most ${highest} in ${interval}`}
      >
        {bars.map(({ at, counts, runs }) => {
          let top = HEIGHT;
          return (
            <g key={at}>
              <title>
                {`${DATE.format(at)}: ${runs === 1 ? "1 run" : `${runs} runs`}; ${STATUSES.filter((status) => counts[status])
                  .map((status) => `${counts[status]} ${readable(status)}`)
                  .join(", ")}`}
              </title>
              {STATUSES.map((status) => {
                const height = ((counts[status] ?? 0) / highest) * (HEIGHT - 4);
                top -= height;
                return (
                  height > 0 && (
                    <rect
                      key={status}
                      className={status}
                      x={((at - since) / width) * slot + 1}
                      y={top}
                      width={slot - 2}
                      height={height}
                    />
                  )
                );
              })}
            </g>
          );
        })}
      </svg>
      <figcaption>
        <span>{label(since)}</span>
        <span>{all === 0 ? "no runs" : `at most ${highest} in ${interval}`}</span>
        <span>{label(since + places * width)}</span>
      </figcaption>
    </figure>
  );
}

function Failing({ statistics: { failing } }: { statistics: RunStatistics }) {
  return (
    <section>
      <h2>Failing steps</h2>
      {failing.length === 0 ? (
        <p className="empty">None failed at a step.</p>
      ) : (
        <table className="list">
          <thead>
            <tr>
              <th>Workflow</th>
              <th>Step</th>
              <th>Runs</th>
              <th>Newest</th>
            </tr>
          </thead>
          <tbody>
            {failing.map(({ workflow, step, runs, newest }) => (
              <tr key={`${workflow} ${step}`}>
                <td>
                  <WorkflowName name={workflow} />
                </td>
                <td className="id">{step}</td>
                <td data-label="Runs">{runs}</td>
                <td>
                  <Link href={`/runs/${newest}?step=${step}`}>open</Link>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function Slowest({ statistics: { slowest } }: { statistics: RunStatistics }) {
  return (
    <section>
      <h2>Slowest workflows</h2>
      {slowest.length === 0 ? (
        <p className="empty">None has ended.</p>
      ) : (
        <table className="list">
          <thead>
            <tr>
              <th>Workflow</th>
              <th>Runs</th>
              <th>Mean</th>
              <th>Longest</th>
            </tr>
          </thead>
          <tbody>
            {slowest.map(({ workflow, runs, mean_seconds, longest_seconds }) => (
              <tr key={workflow}>
                <td>
                  <WorkflowName name={workflow} />
                </td>
                <td data-label="Runs">{runs}</td>
                <td data-label="Mean">{duration(1_000 * mean_seconds)}</td>
                <td data-label="Longest">{duration(1_000 * longest_seconds)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function WorkflowName({ name }: { name: string }) {
  const may = useMay();
  return may("workflows:read") && !BUILT_IN.has(name) ? (
    <Link href={`/workflows/${name}`} className="id">
      {name}
    </Link>
  ) : (
    <span className="id">{name}</span>
  );
}

/** Who takes tasks, and how many wait. */
function Capacity() {
  const workers = useWorkers();
  const types = useTaskTypes();
  const error = workers.error ?? types.error;
  const transports = new Map<string, number>();
  for (const { transport } of workers.data?.workers ?? []) transports.set(transport, (transports.get(transport) ?? 0) + 1);
  const queues = (types.data?.task_types ?? []).filter(({ waiting }) => waiting > 0).sort((a, b) => b.waiting - a.waiting);
  const waiting = queues.reduce((sum, queue) => sum + queue.waiting, 0);
  return (
    <section>
      <div className="section-head">
        <h2>Workers</h2>
        <Link href="/workers">All workers and queues</Link>
      </div>
      {error && <Trouble error={error} />}
      {workers.data && types.data && (
        <Facts
          of={[
            ...[...transports].map(([transport, many]): [string, string] => [
              TRANSPORTS[transport] ?? transport,
              `${many}${workers.data.next ? " or more" : ""}`,
            ]),
            ["Tasks that wait", `${waiting}${types.data.next ? " or more" : ""}`],
            ...queues.slice(0, 5).map(({ task_type, waiting }): [string, number] => [task_type, waiting]),
          ]}
        />
      )}
      {workers.data?.workers.length === 0 && <Status value="no worker is there" as="failed" />}
    </section>
  );
}

function Sandboxes() {
  const sandboxes = useSandboxes();
  const many = sandboxes.data?.sandboxes.length ?? 0;
  return (
    <section>
      <div className="section-head">
        <h2>Sandboxes</h2>
        <Link href="/sandboxes">All sandboxes</Link>
      </div>
      {sandboxes.error && <Trouble error={sandboxes.error} />}
      {sandboxes.data && <Facts of={[["With a lease", sandboxes.data.next ? `more than ${many}` : many]]} />}
    </section>
  );
}
