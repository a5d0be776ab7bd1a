import { useQueryClient } from "@tanstack/react-query";
import { createParser } from "eventsource-parser";
import { useEffect, useRef, useState, useSyncExternalStore } from "react";

import { browserHeader, Problem } from "./client";

/** One event of a run. Its other fields depend on its type: docs/reference/events.md. */
export interface RunEvent {
  seq: number;
  at: string;
  run_id: string;
  type: string;
  step?: string;
  attempt?: number;
  [field: string]: unknown;
}

/** An event of a stream as the server sent it. */
export interface Message {
  id?: string;
  event: string;
  data: Record<string, unknown>;
}

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
const SILENCE_MS = 45_000; // the server gives a sign of life every 15 seconds
const BATCH_MS = 100;
const REST_MS = 300; // between two requests for the same thing
const FINAL = new Set([400, 401, 403, 404]);

interface Flow {
  /** Resolves when a connection may be made. */
  connecting: () => Promise<unknown>;
  /** Resolves when more may be read. */
  ready: () => Promise<unknown>;
  lost: (is: boolean) => void;
}

/**
 * Reads a stream of events until it ends by itself, through interruptions and restarts of the server: each time it
 * continues after the last event that was seen.
 */
async function follow(
  path: string,
  after: string | undefined,
  take: (message: Message) => void,
  signal: AbortSignal,
  { connecting, ready, lost }: Flow,
): Promise<void> {
  let last = after;
  let pause = FIRST_PAUSE_MS;
  let ended = false;
  const parser = () =>
    createParser({
      onEvent({ event, id, data }) {
        if (ended) return;
        const told: unknown = JSON.parse(data);
        if (typeof told !== "object" || told === null) return;
        ended = event === "end";
        take({ id: (last = id ?? last), event: event ?? "", data: told as Message["data"] });
      },
    });
  const alive = () => {
    pause = FIRST_PAUSE_MS;
    lost(false);
  };
  while (!ended && !signal.aborted) {
    try {
      await connecting();
      if (await attempt(path, last, signal, parser(), ready, alive)) {
        take({ id: last, event: "end", data: {} }); // all was seen but this
        return;
      }
    } catch (error) {
      if (error instanceof Problem && FINAL.has(error.status)) {
        lost(false);
        throw error;
      }
    }
    if (ended || signal.aborted) return;
    lost(true);
    await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random() / 2)));
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
}

/** One connection, closed after a long silence. Returns whether nothing more will come. */
async function attempt(
  path: string,
  last: string | undefined,
  signal: AbortSignal,
  parser: { feed: (text: string) => void },
  ready: () => Promise<unknown>,
  alive: () => void,
): Promise<boolean> {
  const silence = new AbortController();
  const giveUp = () => silence.abort();
  let timer = window.setTimeout(giveUp, SILENCE_MS);
  try {
    const response = await fetch(path, {
      headers: { ...browserHeader(), Accept: "text/event-stream", ...(last && { "Last-Event-ID": last }) },
      signal: AbortSignal.any([signal, silence.signal]),
      credentials: "same-origin",
    });
    if (response.status === 204) return true;
    if (!response.ok || response.body === null) throw await Problem.from(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      window.clearTimeout(timer);
      alive();
      parser.feed(piece.value);
      await ready();
      timer = window.setTimeout(giveUp, SILENCE_MS);
    }
    return false;
  } finally {
    window.clearTimeout(timer);
    silence.abort();
  }
}

export interface EventOptions {
  /** A stream that has ended is read again when this changes. */
  again?: unknown;
  /** How long events are collected before they are taken. */
  batchMs?: number;
  /** Called and waited for before each connection. */
  connecting?: () => Promise<unknown>;
  /** Waited for before more is read. */
  ready?: () => Promise<unknown>;
}

/**
 * Calls `take` with new events in batches, with each event once, and with the stream's `end`. Returns whether the
 * connection is lost at the moment. Nothing is read while the page is hidden: browsers allow six connections to a server.
 */
export function useEvents(path: string, take: (news: Message[]) => void, options: EventOptions = {}): boolean {
  const { again = null, batchMs = BATCH_MS } = options;
  const queries = useQueryClient();
  const visible = useSyncExternalStore(watchVisibility, () => !document.hidden);
  const [isLost, setLost] = useState(false);
  const latest = useRef({ take, options });
  latest.current = { take, options };
  const taken = useRef<string | undefined>(undefined);
  useEffect(() => {
    if (!visible) return;
    const stop = new AbortController();
    const waiting: Message[] = [];
    let timer: number | undefined;
    const flush = () => {
      timer = undefined;
      taken.current = waiting.at(-1)?.id;
      latest.current.take(waiting.splice(0));
    };
    const collect = (message: Message) => {
      if (stop.signal.aborted) return;
      waiting.push(message);
      timer ??= window.setTimeout(flush, batchMs);
    };
    const flow: Flow = {
      connecting: async () => latest.current.options.connecting?.(),
      ready: async () => latest.current.options.ready?.(),
      lost: (is) => !stop.signal.aborted && setLost(is),
    };
    // A caller who is no longer signed in gets the sign-in page; the page's own request shows any other problem.
    follow(path, taken.current, collect, stop.signal, flow).catch(() =>
      queries.invalidateQueries({ queryKey: ["caller"] }),
    );
    return () => {
      stop.abort();
      window.clearTimeout(timer);
      setLost(false);
    };
  }, [path, again, batchMs, visible, queries]);
  return isLost;
}

function watchVisibility(changed: () => void): () => void {
  document.addEventListener("visibilitychange", changed);
  return () => document.removeEventListener("visibilitychange", changed);
}

/** Refetches what is shown, one request at a time: under a flood of events, each response is used and not dropped. */
export function useRefresh(...queryKey: string[]): () => void {
  const queries = useQueryClient();
  const state = useRef({ busy: false, again: false });
  return function refresh(): void {
    const now = state.current;
    if (now.busy) {
      now.again = true;
      return;
    }
    now.busy = true;
    const rest = new Promise((resolve) => setTimeout(resolve, REST_MS));
    void Promise.all([queries.invalidateQueries({ queryKey }), rest]).finally(() => {
      now.busy = false;
      if (now.again) {
        now.again = false;
        refresh();
      }
    });
  };
}
