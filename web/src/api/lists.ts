import { keepPreviousData, useQuery } from "@tanstack/react-query";

import { api, body, unlessForbidden } from "./client";

// Lists that several pages show. Each is kept under one key, so all pages have to ask for the same part.
const LOOK_MS = 3_000;

export const useWorkers = (after?: string) =>
  useQuery({
    queryKey: ["workers", after],
    queryFn: () => body(api.GET("/v1/workers", { params: { query: { after, limit: 200 } } })),
    placeholderData: keepPreviousData,
    refetchInterval: unlessForbidden(LOOK_MS),
  });

export const useTaskTypes = () =>
  useQuery({
    queryKey: ["task-types"],
    queryFn: () => body(api.GET("/v1/task-types", { params: { query: { limit: 1_000 } } })),
    refetchInterval: unlessForbidden(LOOK_MS),
  });

export const useSandboxes = (after?: string) =>
  useQuery({
    queryKey: ["sandboxes", after],
    queryFn: () => body(api.GET("/v1/sandboxes", { params: { query: { after, limit: 100 } } })),
    placeholderData: keepPreviousData,
    refetchInterval: unlessForbidden(LOOK_MS),
  });
