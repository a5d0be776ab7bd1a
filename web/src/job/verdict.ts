import type { JobVerdict } from "../api/client";
import { oneLine } from "../parts";

/** The verdict in words, much like those of `fumehood job show`. */
export function verdictInWords(verdict: JobVerdict): string {
  const { outcome, redundancy, agreed } = verdict;
  const many = redundancy === 1 ? "1 provider" : `${redundancy} providers`;
  const who = providerOf(verdict, verdict.chosen);
  switch (outcome) {
    case "single":
      return `One provider, ${who}: nobody compared its answer with another's, and its receipt binds it to it.`;
    case "majority":
      return `${agreed} of ${many} came to the same; shown is what ${who} gave.`;
    case "judged":
      return `A judge chose what ${who} gave out of the answers of ${many}.`;
    case "merged":
      return `Merged out of what ${many} gave.`;
    case "no_majority":
      return `No majority among ${many}: all that they said is below, and nothing of it counts.`;
    case "error":
      return "There is none: nothing could be decided.";
  }
}

/** The name of the provider that did an execution. */
export function providerOf({ candidates }: JobVerdict, execution: number | undefined): string {
  const found = candidates.find((one) => one.execution === execution);
  return oneLine(found?.worker ?? "an unnamed one");
}
