import { useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useState } from "react";
import * as v from "valibot";

import { api, body, Problem } from "../api/client";
import { keep, kept } from "../kept";
import { Facts, readable, Status, Time, Trouble, Value } from "../parts";
import { type Claim, type Shown, Trust, type Verdict, verify } from "./verify";

const ROOT = "fumehood-receipt-root";
const LOOK_MS = 10_000;

/** What the node signed about a sandbox step, checked in the browser and not by the server. */
export function ReceiptPanel({ shown, hasEnded }: { shown: Shown; hasEnded: boolean }) {
  const [relied, rely] = useRelied();
  const { run_id, step_id, attempt } = shown;
  const isSettled = hasEnded && shown.report !== undefined; // the receipt of any other step may come late
  const receipt = useQuery({
    queryKey: ["receipt", run_id, step_id, attempt, hasEnded],
    staleTime: ({ state }) => (state.data?.envelope ? Infinity : 0), // it never changes
    refetchInterval: ({ state }) => (state.data?.envelope || isSettled ? false : LOOK_MS),
    queryFn: async () => {
      const path = { params: { path: { run_id, step: step_id } } };
      try {
        return { envelope: await body(api.GET("/v1/runs/{run_id}/steps/{step}/receipt", path)) };
      } catch (error) {
        if (error instanceof Problem && error.status === 404) return { missing: error.message };
        throw error;
      }
    },
  });
  const keys = useQuery({
    queryKey: ["receipt-keys"],
    refetchOnWindowFocus: false, // the root must not change while it is being compared
    queryFn: async () => (await body(api.GET("/v1/receipt-keys"))) ?? null,
  });
  const envelope = receipt.data?.envelope;
  const verdict = useMemo(
    () => (envelope && keys.data !== undefined ? verify(envelope, keys.data, relied, shown) : undefined),
    [envelope, keys.data, relied, shown],
  );
  useEffect(() => {
    if (verdict?.trust) rely((before) => (before && isNewer(verdict.trust!, before) ? verdict.trust! : before));
  }, [verdict, rely]);

  const isOutdated = keys.isFetching && verdict?.refused?.reason === "unknown_key";
  return (
    <section className="receipt" aria-label="Receipt">
      <h3>
        Receipt{" "}
        <span role="status">
          {verdict && !isOutdated && (
            <Summary verdict={verdict} relied={relied} />
          )}
        </span>
      </h3>
      {receipt.data?.missing && <p className="empty">There is none: {receipt.data.missing}.</p>}
      {(receipt.error ?? keys.error) && <Trouble error={(receipt.error ?? keys.error)!} />}
      {verdict && !isOutdated && (
        <>
          {verdict.refused && (
            <p className="trouble" role="alert">
              <code>{verdict.refused.reason}</code> {verdict.refused.detail}
            </p>
          )}
          <ul className="checks">
            {verdict.passed.map((words) => (
              <li key={words}>{words}</li>
            ))}
          </ul>
          <Root relied={relied} found={verdict.trust} rely={rely} />
          {verdict.claim && <Evidence claim={verdict.claim} outputs={verdict.outputs ?? {}} />}
          {verdict.notes.map((words) => (
            <p key={words} className="hint">
              {words}
            </p>
          ))}
        </>
      )}
      {envelope && (
        <p className="hint">
          This page did the check, and it came from the same server. To rely on nothing that the server says,{" "}
          <a
            href={`data:application/json,${encodeURIComponent(JSON.stringify(envelope))}`}
            download={`${run_id}-${step_id}.receipt.json`}
          >
            save the receipt
          </a>{" "}
          and give it to <code>fumehood verify</code> on your own machine.
        </p>
      )}
    </section>
  );
}

function Summary({ verdict, relied }: { verdict: Verdict; relied: Trust | null }) {
  if (verdict.refused) return <Status value="refused" />;
  if (relied !== null && verdict.isWhole) return <Status value="verified" />;
  return <span className="status">{relied === null ? "signed, root not compared" : "verified in part"}</span>;
}

const isNewer = (found: Trust, before: Trust) => found.root === before.root && found.version > before.version;

type Rely = (change: (before: Trust | null) => Trust | null) => void;

/** The root that the reader relies on, the same in all tabs of this browser; null until one was compared. */
function useRelied(): [Trust | null, Rely] {
  const [relied, setRelied] = useState(readTrust);
  useEffect(() => {
    const look = () => setRelied(readTrust());
    window.addEventListener("storage", look);
    return () => window.removeEventListener("storage", look);
  }, []);
  const rely = useCallback<Rely>((change) => {
    const before = readTrust();
    const after = change(before);
    if (after === before) return;
    keep(ROOT, after && JSON.stringify(after));
    setRelied(after);
  }, []);
  return [relied, rely];
}

function readTrust(): Trust | null {
  try {
    return v.parse(Trust, JSON.parse(kept(ROOT) ?? "null"));
  } catch {
    return null;
  }
}

function Root({ relied, found, rely }: { relied: Trust | null; found: Trust | undefined; rely: Rely }) {
  const shown = relied ?? found;
  if (shown === undefined) return null;
  return (
    <div className="root">
      <p>
        {relied
          ? "Checked against the root that you rely on:"
          : "Checked against the root that this server names. Compare it with the one that your operator gave you:"}{" "}
        <code>{shown.root}</code>
      </p>
      <button type="button" onClick={() => rely(() => (relied ? null : shown))}>
        {relied ? "Forget this root" : "I compared it: rely on this root"}
      </button>
    </div>
  );
}

/** Why the image was admitted or denied and how its sandbox was isolated, followed by the whole receipt. */
function Evidence({ claim, outputs }: { claim: Claim; outputs: Record<string, string> }) {
  const { image, outcome } = claim;
  const observed = claim.observed ?? {};
  const admission = part(image?.evidence ?? observed.admission);
  const isolation = part(observed.isolation);
  const how = outcome.exit_code == null ? outcome.reason : `exit code ${outcome.exit_code}`;
  const rows: [string, unknown][] = [
    ["Outcome", [outcome.status, how].filter(Boolean).join(", ")],
    ["Image", image?.reference ?? image?.digest ?? admission.image],
    ["Denied", spaced(admission.denial_reason ?? observed.denied)],
    ["Decision", admission.detail],
    ["Policy", [admission.policy, admission.rule].filter(Boolean).join(", rule ")],
    ["Signature", [spaced(admission.signature), admission.identity ?? admission.key].filter(Boolean).join(", by ")],
    ["Runtime", isolation.runtime],
    ["Network", isolation.network],
  ];
  const texts = rows.filter((row): row is [string, string] => typeof row[1] === "string");
  return (
    <>
      <Facts className="evidence" of={[...texts, ["Ended", <Time at={claim.finished_at} />]]} />
      <details>
        <summary>Everything that was signed</summary>
        <Value value={{ ...claim, outputs }} />
      </details>
    </>
  );
}

const part = (value: unknown) => (typeof value === "object" && value !== null ? value : {}) as Record<string, unknown>;
const spaced = (value: unknown) => (typeof value === "string" ? readable(value) : undefined);
