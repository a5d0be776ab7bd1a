import { useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense, useState } from "react";
import { Link, useSearchParams } from "wouter";

import { useAction } from "../api/action";
import { api, body, type Command } from "../api/client";
import { useMay } from "../caller";
import { Logs } from "../output/logs";
import { duration, oneLine, Status, Time, Trouble, useAddress, useNow } from "../parts";
import { useCommandOutput } from "./command-output";

const Terminal = lazy(async () => ({ default: (await import("./terminal")).Terminal }));

const LOOK_MS = 3_000;
const SHELL = [
  "sh",
  "-c",
  ': "${LANG:=C.UTF-8}"; export LANG; command -v bash >/dev/null 2>&1 || exec sh; ' +
    "id -un >/dev/null 2>&1 || export PROMPT_COMMAND='PS1=${PS1//\\\\u@/}; unset PROMPT_COMMAND'; exec bash",
]; // bash where the image has it; it must not greet a user without a name with "I have no name!"

const newName = () => `cmd-${crypto.randomUUID()}`;

/** The commands of a sandbox; the chosen one, which is in the address, with its terminal or output. */
export function Commands({ sandbox }: { sandbox: string }) {
  const may = useMay();
  const queries = useQueryClient();
  const [search, setSearch] = useSearchParams();
  const chosen = search.get("command");
  const list = useQuery({
    queryKey: ["commands", sandbox],
    refetchInterval: LOOK_MS,
    queryFn: () => body(api.GET("/v1/sandboxes/{sandbox_id}/commands", { params: { path: { sandbox_id: sandbox } } })),
  });
  const refresh = () => queries.invalidateQueries({ queryKey: ["commands", sandbox] });
  const [next, setNext] = useState(newName); // asked for again after a lost answer, it is the same terminal
  const open = useAction({
    mutationFn: () =>
      body(
        api.POST("/v1/sandboxes/{sandbox_id}/commands", {
          params: { path: { sandbox_id: sandbox } },
          body: {
            command_id: next,
            command: SHELL,
            cwd: "/workspace",
            terminal: { rows: 24, columns: 80 },
            env: { TERM: "xterm-256color", COLORTERM: "truecolor" },
            stdin: true,
            background: true,
            wait_ms: 0,
          },
        }),
      ),
    onSuccess: ({ command_id }) => {
      setNext(newName());
      setSearch((before) => {
        before.set("command", command_id);
        return before;
      });
      return refresh();
    },
  });
  const commands = list.data?.commands ?? [];
  return (
    <section aria-label="Commands">
      <div className="section-head">
        <h2>Commands</h2>
        {may("sandboxes:write") && (
          <button type="button" className="primary" disabled={open.isPending} onClick={() => open.mutate()}>
            Open a terminal
          </button>
        )}
      </div>
      {open.error && <Trouble error={open.error} />}
      {chosen && <Chosen key={chosen} sandbox={sandbox} id={chosen} changed={refresh} />}
      {list.error && <Trouble error={list.error} />}
      {list.data && commands.length === 0 && <p className="empty">No command was run in this sandbox yet.</p>}
      {commands.length > 0 && <Table commands={commands} chosen={chosen} />}
    </section>
  );
}

function Table({ commands, chosen }: { commands: Command[]; chosen: string | null }) {
  const address = useAddress();
  const now = useNow(commands.some(({ status }) => status === "running"));
  return (
    <table className="list">
      <thead>
        <tr>
          <th>Command</th>
          <th>Status</th>
          <th>Started</th>
          <th>Duration</th>
        </tr>
      </thead>
      <tbody>
        {commands.toReversed().map((command) => (
          <tr key={command.command_id} className={command.command_id === chosen ? "chosen" : ""}>
            <td>
              <Link href={address("command", command.command_id)} className="id">
                {words(command)}
              </Link>
            </td>
            <td>
              <Ending command={command} />
            </td>
            <td>{command.started_at && <Time at={command.started_at} />}</td>
            <td>
              {command.started_at &&
                duration((command.ended_at ? Date.parse(command.ended_at) : now) - Date.parse(command.started_at))}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** A terminal's shell, or the words of the command. */
function words({ command, terminal }: Command): string {
  if (terminal && command.join("\n") === SHELL.join("\n")) return "terminal";
  const said = command[0] === "sh" && command[1] === "-c" && command.length === 3 ? command[2]! : command.join(" ");
  return oneLine(said.length > 200 ? `${said.slice(0, 200)}…` : said);
}

function Ending({ command: { status, exit_code, signal, detail } }: { command: Command }) {
  return (
    <>
      <Status value={status} as={status === "exited" && exit_code !== 0 ? "failed" : status} />{" "}
      {exit_code !== null && `exit code ${exit_code}`}
      {signal !== null && `signal ${signal}`}
      {detail && <span className="why">{oneLine(detail)}</span>}
    </>
  );
}

function Chosen({ sandbox, id, changed }: { sandbox: string; id: string; changed: () => void }) {
  const may = useMay();
  const command = useQuery({
    queryKey: ["command", sandbox, id],
    gcTime: 0, // a terminal begins with the state of this moment, never with a remembered one
    staleTime: ({ state }) => (state.data?.status === "running" ? 0 : Infinity),
    refetchInterval: ({ state }) => (state.data?.status === "running" ? LOOK_MS : false),
    queryFn: () =>
      body(
        api.GET("/v1/sandboxes/{sandbox_id}/commands/{command_id}", {
          params: { path: { sandbox_id: sandbox, command_id: id } },
        }),
      ),
  });
  const act = useAction({
    mutationFn: (signal: "SIGHUP" | "SIGTERM" | "SIGKILL") =>
      api.POST("/v1/sandboxes/{sandbox_id}/commands/{command_id}:signal", {
        params: { path: { sandbox_id: sandbox, command_id: id } },
        body: { signal, everything: false },
      }),
    onSettled: () => command.refetch(),
  });
  const ended = () => {
    void command.refetch();
    changed();
  };
  if (command.data === undefined) {
    return command.error ? <Trouble error={command.error} /> : <p role="status">Loading…</p>;
  }
  const { terminal, status } = command.data;
  const isRunning = status === "running";
  const mayWrite = may("sandboxes:write");
  return (
    <section className="panel" aria-label="Chosen command">
      <div className="section-head">
        <h2>
          <span className="id">{words(command.data)}</span> <Ending command={command.data} />
        </h2>
        {isRunning && mayWrite && (
          <>
            <button type="button" disabled={act.isPending} onClick={() => act.mutate(terminal ? "SIGHUP" : "SIGTERM")}>
              {terminal ? "Hang up" : "Stop"}
            </button>
            <button type="button" disabled={act.isPending} onClick={() => act.mutate("SIGKILL")}>
              Kill
            </button>
          </>
        )}
      </div>
      {(act.error ?? command.error) && <Trouble error={(act.error ?? command.error)!} />}
      {terminal ? (
        <Suspense fallback={<p role="status">Loading…</p>}>
          <Terminal key={String(mayWrite)} command={command.data} mayType={mayWrite} ended={ended} />
        </Suspense>
      ) : (
        <CommandOutput command={command.data} />
      )}
      <p className="hint">
        In a shell:{" "}
        <code>
          fumehood session {terminal ? "attach" : "logs"} {sandbox} {id}
        </code>
      </p>
    </section>
  );
}

function CommandOutput({ command }: { command: Command }) {
  const { output, version } = useCommandOutput(command);
  return <Logs output={output} version={version} />;
}
