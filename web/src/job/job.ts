import { useQuery } from "@tanstack/react-query";

import { api, body, type Job, Problem } from "../api/client";

const LOOK_MS = 5_000;
const LOOK_AGAIN_MS = 30_000;

export const hasEnded = ({ status }: Job): boolean => status !== "queued" && status !== "running";

export const isMissing = (error: unknown): boolean => error instanceof Problem && error.status === 404;

/** A job, fetched again until it has ended. One with a verdict never changes; its run may be retried without one. */
export const useJob = (id: string) =>
  useQuery({
    queryKey: ["job", id],
    queryFn: () => body(api.GET("/v1/jobs/{job_id}", { params: { path: { job_id: id } } })),
    staleTime: ({ state }) => (state.data?.verdict ? Infinity : 2_000),
    gcTime: 0, // one with all answers and receipts may have many megabytes
    refetchInterval: ({ state: { data, error } }) => {
      if (data?.verdict || isMissing(error)) return false;
      return data && hasEnded(data) ? LOOK_AGAIN_MS : LOOK_MS;
    },
  });
