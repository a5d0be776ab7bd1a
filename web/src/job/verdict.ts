import type { JobVerdict } from "../api/client";
import { oneLine } from "../parts";

/** The verdict in words, much like those of `fumehood job show`. */
export function verdictInWords(verdict: JobVerdict): string {
  const { outcome, redundancy, agreed } = verdict;
  const many = redundancy === 1 ? "1 provider" : `${redundancy} providers`;
  const who = providerOf(verdict, verdict.chosen);
  switch (outcome) {
    case "single":
      return `One provider, ${who}, answered. Its answer was compared with no other; its receipt binds it to the answer.`;
    case "majority":
      return `${agreed} of ${many} came to the same; shown is what ${who} gave.`;
    case "judged":
      return `A judge chose the answer of ${who} from the answers of ${many}.`;
    case "merged":
      return `Merged from the answers of ${many}.`;
    case "no_majority":
      return `No majority among ${many}: all answers are below, and none of them counts.`;
    case "error":
      return "No verdict: nothing could be decided.";
  }
}

/** The name of the provider that did an execution. */
export function providerOf({ candidates }: JobVerdict, execution: number | undefined): string {
  const found = candidates.find((one) => one.execution === execution);
  return oneLine(found?.worker ?? "an unnamed one");
}
