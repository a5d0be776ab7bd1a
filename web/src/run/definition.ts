import { duration } from "../parts";

/** The parts of a step's canonical definition that the graph shows. */
export interface StepDefinition {
  id: string;
  needs: string[];
  kind: string;
  /** What the step does: its task type, image, workflow, signal or time. */
  does: string;
}

/** Each job is a run of this workflow. */
export const JOB_WORKFLOW = "fumehood-job";

/** Workflows of the server's own, for jobs and single images. They have no page. */
export const BUILT_IN: ReadonlySet<string> = new Set([JOB_WORKFLOW, "fumehood-run"]);

type Part = Record<string, unknown>;

const KINDS: Record<string, (given: any) => unknown> = {
  task: (type: string) => type,
  sandbox: ({ image }: Part) => image,
  agent_loop: ({ task }: Part) => task,
  map: ({ task }: Part) => task,
  sleep: (milliseconds: number) => duration(milliseconds),
  wait_signal: ({ name }: Part) => name,
  approval: ({ message }: Part) => message,
  sub_workflow: ({ workflow }: Part) => workflow,
};

export function stepsOf(definition: unknown): StepDefinition[] {
  const steps = (definition as { steps?: Part[] } | undefined)?.steps ?? [];
  return steps.map((step) => {
    const kind = Object.keys(KINDS).find((name) => step[name] != null);
    return {
      id: String(step.id),
      needs: (step.needs as string[] | undefined) ?? [],
      kind: kind ?? "",
      does: kind === undefined ? "" : String(KINDS[kind]!(step[kind]) ?? ""),
    };
  });
}
