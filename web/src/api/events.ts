import { useQueryClient } from "@tanstack/react-query";
import { EventSourceParserStream } from "eventsource-parser/stream";
import { useEffect, useRef } from "react";

import { BROWSER, Problem } from "./client";

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

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;

/**
 * Reads a stream of events until it ends by itself, through interruptions and restarts of the server: each time it
 * goes on behind the last event that was seen.
 */
async function follow(path: string, take: (events: RunEvent[]) => void, signal: AbortSignal): Promise<void> {
  let last: string | undefined;
  let pause = FIRST_PAUSE_MS;
  while (!signal.aborted) {
    try {
      const headers = { ...BROWSER, Accept: "text/event-stream", ...(last && { "Last-Event-ID": last }) };
      const response = await fetch(path, { headers, signal, credentials: "same-origin" });
      if (response.status === 204) return;
      if (!response.ok || response.body === null) throw await Problem.from(response);
      const events = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());
      for await (const event of events as ReadableStream<{ event?: string; id?: string; data: string }>) {
        pause = FIRST_PAUSE_MS;
        if (event.event === "end") return;
        last = event.id ?? last;
        take([JSON.parse(event.data) as RunEvent]);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && error.status >= 400 && error.status < 500) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random() / 2)));
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
}

/** Calls `take` with events as they come, those of one moment together; `again` starts anew after a stream's end. */
export function useEvents(path: string, take: (events: RunEvent[]) => void, again: unknown = null): void {
  const queries = useQueryClient();
  const latest = useRef(take);
  latest.current = take;
  useEffect(() => {
    const stop = new AbortController();
    let waiting: RunEvent[] = [];
    let timer: number | undefined;
    const flush = () => {
      timer = undefined;
      latest.current(waiting.splice(0));
    };
    const collect = (events: RunEvent[]) => {
      waiting.push(...events);
      timer ??= window.setTimeout(flush, 100);
    };
    // Who is not let in any more is shown the sign-in page; of anything else the page's own request shows why.
    follow(path, collect, stop.signal).catch(() => queries.invalidateQueries({ queryKey: ["caller"] }));
    return () => {
      stop.abort();
      window.clearTimeout(timer);
      waiting = [];
    };
  }, [path, again, queries]);
}
