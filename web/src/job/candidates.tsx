import { useMemo } from "react";

import type { Candidate, JobVerdict } from "../api/client";
import { Facts, oneLine, Status } from "../parts";
import { saveJson } from "../save";
import { Answer } from "./answer";
import { agree, markedLines } from "./lines";
import { providerOf } from "./verdict";

const SHOWN = 12; // characters of a hash
const LETTERS = "ABCDEFGHI"; // a job has nine executions at most

/** What each provider answered, side by side. Answers that agree have the same letter. */
export function Candidates({ job, verdict }: { job: string; verdict: JobVerdict }) {
  const marked = useMemo(() => markedLines(verdict), [verdict]);
  return (
    <section aria-label="Candidates">
      <h2>Candidates</h2>
      {[...marked.values()].some(({ size }) => size > 0) && (
        <p className="hint">
          Lines that {verdict.chosen === undefined ? "another answer" : "the chosen answer"} does not have are marked.
          Not all of them matter: the job type decides what is compared, and durations and host names never are.
        </p>
      )}
      <div className="candidates">
        {verdict.candidates.map((one) => (
          <CandidatePanel key={one.execution} job={job} verdict={verdict} candidate={one} marked={marked.get(one)} />
        ))}
      </div>
    </section>
  );
}

interface CandidateProps {
  job: string;
  verdict: JobVerdict;
  candidate: Candidate;
  marked: ReadonlySet<number> | undefined;
}

function CandidatePanel({ job, verdict, candidate, marked }: CandidateProps) {
  const { execution, worker, key_id, accepted, declared_sha256, response, receipt, error } = candidate;
  const counted = verdict.candidates.filter((one) => one.accepted);
  const answers = [...new Set(counted.map((one) => one.declared_sha256))];
  const letter = LETTERS[answers.indexOf(declared_sha256)];
  const same = counted.filter((one) => agree(one, candidate)).length;
  const [word, colour] = standing(candidate, verdict);
  return (
    <section className={`panel ${colour}`} aria-label={`Execution ${execution}`}>
      <h3>
        {oneLine(worker ?? "no provider")} <Status value={word} as={colour} />
      </h3>
      <Facts
        of={[
          ["Answer", accepted ? `${letter}, given by ${same} of ${verdict.redundancy}` : undefined],
          ["Declared hash", declared_sha256 && <Hash of={declared_sha256} />],
          ["Key", key_id && <Hash of={key_id} />],
        ]}
      />
      {error && (
        <p className="trouble">
          <code>{oneLine(error.code)}</code> {oneLine(error.message)}
        </p>
      )}
      {colour === "waiting" && marked?.size === 0 && <p className="hint">It lacks lines of the chosen answer.</p>}
      {response && <Answer of={response} marked={marked} />}
      {receipt && <SaveReceipt receipt={receipt} name={`${job}.${execution}`} />}
    </section>
  );
}

/** How a candidate stands, in a word and the class of a colour. */
function standing(candidate: Candidate, { candidates, chosen }: JobVerdict): [string, string] {
  if (!candidate.accepted) return [candidate.rejected ? "rejected" : "no answer", "refused"];
  const choice = candidates.find(({ execution }) => execution === chosen);
  if (choice === undefined) return ["accepted", ""];
  return [candidate === choice ? "chosen" : "accepted", agree(candidate, choice) ? "verified" : "waiting"];
}

/** The judge, which saw the answers without the names of their providers. */
export function JudgePanel({ job, verdict }: { job: string; verdict: JobVerdict }) {
  const { judge } = verdict;
  if (judge === undefined) return null;
  return (
    <section className="panel" aria-label="Judge">
      <h2>Judge</h2>
      <Facts
        of={[
          ["Chose", providerOf(verdict, judge.order[judge.index])],
          ["Saw, without names", judge.order.map((execution) => providerOf(verdict, execution)).join(", then ")],
          ["Judge", oneLine(judge.worker)],
          ["Key", <Hash of={judge.key_id} />],
        ]}
      />
      <p>{oneLine(judge.reason)}</p>
      <SaveReceipt receipt={judge.receipt} name={`${job}.judge`} />
    </section>
  );
}

/** The beginning of a hash, and all of it under the pointer. */
const Hash = ({ of: hash }: { of: string }) => (
  <span className="id" title={hash}>
    {hash.slice(0, SHOWN)}…
  </span>
);

const SaveReceipt = ({ receipt, name }: { receipt: Record<string, unknown>; name: string }) => (
  <button type="button" onClick={() => saveJson(receipt, `${name}.receipt.json`)}>
    Save the receipt
  </button>
);
