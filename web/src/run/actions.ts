import { api } from "../api/client";

/** The types of events that change a list of runs. */
export const RUN_CHANGES = "run.started,run.succeeded,run.failed,run.timed_out,run.cancelled,run.retried";

export const stop = ({ run_id }: { run_id: string }) =>
  api.POST("/v1/runs/{run_id}:cancel", { params: { path: { run_id } } });

export const retry = ({ run_id }: { run_id: string }) =>
  api.POST("/v1/runs/{run_id}:retry", { params: { path: { run_id } } });

export const canBeStopped = ({ status }: { status: string }) => status === "running" || status === "queued";
export const canBeRetried = ({ status }: { status: string }) => status === "failed" || status === "timed_out";
