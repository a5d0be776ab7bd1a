import { useQuery } from "@tanstack/react-query";

import { api, body, type Job, Problem } from "../api/client";

const LOOK_MS = 5_000;

export const hasEnded = ({ status }: Job): boolean => status !== "queued" && status !== "running";

export const isMissing = (error: unknown): boolean => error instanceof Problem && error.status === 404;

/** A job, fetched again until it has ended. One with a verdict never changes; its run may be retried without one. */
export const useJob = (id: string) =>
  useQuery({
    queryKey: ["job", id],
    queryFn: () => body(api.GET("/v1/jobs/{job_id}", { params: { path: { job_id: id } } })),
    staleTime: ({ state }) => (state.data?.verdict ? Infinity : 2_000),
    refetchInterval: ({ state: { data, error } }) => ((data ? hasEnded(data) : isMissing(error)) ? false : LOOK_MS),
  });
