import { useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense, useEffect, useRef } from "react";
import { Link, Redirect, Route, Switch, useLocation } from "wouter";

import { useAction } from "./api/action";
import { api, body, type Caller, isSignedOut } from "./api/client";
import { Boundary } from "./boundary";
import { allows, CallerContext } from "./caller";
import { Trouble } from "./parts";
import { JobsPage } from "./pages/jobs";
import { OverviewPage } from "./pages/overview";
import { RunsPage } from "./pages/runs";
import { SandboxesPage } from "./pages/sandboxes";
import { SchedulesPage } from "./pages/schedules";
import { SignInPage } from "./pages/sign-in";
import { WorkflowsPage } from "./pages/workflows";

const JobPage = lazy(async () => ({ default: (await import("./pages/job")).JobPage }));
const KeysPage = lazy(async () => ({ default: (await import("./pages/keys")).KeysPage }));
const RunPage = lazy(async () => ({ default: (await import("./pages/run")).RunPage }));
const SandboxPage = lazy(async () => ({ default: (await import("./pages/sandbox")).SandboxPage }));
const WorkersPage = lazy(async () => ({ default: (await import("./pages/workers")).WorkersPage }));
const WorkflowPage = lazy(async () => ({ default: (await import("./pages/workflow")).WorkflowPage }));

export function App() {
  const caller = useQuery({
    queryKey: ["caller"],
    queryFn: () => body(api.GET("/v1/caller")),
    staleTime: 60_000,
    refetchInterval: ({ state }) => (state.error && !isSignedOut(state.error) ? 5_000 : false),
  });
  const [place] = useLocation();
  if (isSignedOut(caller.error)) return <SignInPage />;
  if (caller.data === undefined) {
    return <main className="page">{caller.error ? <Trouble error={caller.error} /> : <p role="status">Loading…</p>}</main>;
  }
  return (
    <CallerContext value={caller.data}>
      <Header caller={caller.data} />
      <main className="page" id="main">
        <Boundary key={place}>
          <Suspense fallback={<p role="status">Loading…</p>}>
            <Switch>
              <Route path="/">
                <Redirect to={pages(caller.data)[0]?.path ?? "/runs"} replace />
              </Route>
              <Route path="/overview" component={OverviewPage} />
              <Route path="/runs" component={RunsPage} />
              <Route path="/runs/:id">{({ id }) => <RunPage key={id} id={id} />}</Route>
              <Route path="/workflows" component={WorkflowsPage} />
              <Route path="/workflows/:name">{({ name }) => <WorkflowPage key={name} name={name} />}</Route>
              <Route path="/schedules" component={SchedulesPage} />
              <Route path="/jobs" component={JobsPage} />
              <Route path="/jobs/:id">{({ id }) => <JobPage key={id} id={id} />}</Route>
              <Route path="/sandboxes" component={SandboxesPage} />
              <Route path="/sandboxes/:id">{({ id }) => <SandboxPage key={id} id={id} />}</Route>
              <Route path="/workers" component={WorkersPage} />
              <Route path="/keys" component={KeysPage} />
              <Route>
                <h1>There is no such page</h1>
                <p>
                  <Link href="/">To the first page</Link>
                </p>
              </Route>
            </Switch>
          </Suspense>
        </Boundary>
      </main>
    </CallerContext>
  );
}

const PAGES = [
  { path: "/overview", name: "Overview", scope: "runs:read" },
  { path: "/runs", name: "Runs", scope: "runs:read" },
  { path: "/workflows", name: "Workflows", scope: "workflows:read" },
  { path: "/schedules", name: "Schedules", scope: "schedules:read" },
  { path: "/jobs", name: "Jobs", scope: "runs:read" },
  { path: "/sandboxes", name: "Sandboxes", scope: "sandboxes:read" },
  { path: "/workers", name: "Workers", scope: "workers" },
  { path: "/keys", name: "Keys", scope: "keys" },
];

const pages = (caller: Caller) => PAGES.filter(({ scope }) => allows(caller, scope));

function Header({ caller }: { caller: Caller }) {
  const [place] = useLocation();
  const queries = useQueryClient();
  const signOut = useAction({
    mutationFn: () => api.POST("/v1/sign-out"),
    onSuccess: () => queries.resetQueries({ queryKey: ["caller"] }),
  });
  const pagesShown = useRef<HTMLElement>(null);
  useEffect(() => {
    pagesShown.current?.querySelector(".active")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [place]);
  return (
    <header className="top">
      <a className="skip" href="#main">
        Skip to the content
      </a>
      <Link href="/" className="brand">
        Fumehood
      </Link>
      <nav aria-label="Pages" ref={pagesShown}>
        {pages(caller).map(({ path, name }) => (
          <Link key={path} href={path} className={place.startsWith(path) ? "active" : ""}>
            {name}
          </Link>
        ))}
      </nav>
      <span className="who" title={`Tenant ${caller.tenant}; may: ${caller.scopes.join(", ")}`}>
        {caller.name}
      </span>
      {signOut.error && <Trouble error={signOut.error} />}
      <button type="button" className="plain" onClick={() => signOut.mutate()}>
        Sign out
      </button>
    </header>
  );
}
