import { useQueryClient } from "@tanstack/react-query";
import { useContext, useEffect, useState } from "react";
import { Link } from "wouter";

import { useAction } from "../api/action";
import { api, body, type CreatedKey, type Scope, serverTime } from "../api/client";
import { CallerContext, useMay } from "../caller";
import { duration, Facts, Time, Trouble } from "../parts";
import { keysAddress, useTenants } from "./parts";

const SCOPES: Record<Scope, string> = {
  "workflows:read": "see definitions of workflows",
  "workflows:write": "apply definitions of workflows",
  "runs:read": "see runs and jobs with their output and receipts",
  "runs:write": "start, stop and signal runs; submit and cancel jobs",
  "runs:approve": "approve and reject steps",
  "runs:repair": "retry runs; skip steps or complete them by hand",
  "schedules:read": "see schedules",
  "schedules:write": "make, change, pause, trigger and delete schedules",
  "sandboxes:read": "see sandboxes, commands, output and files",
  "sandboxes:write": "create, use and remove sandboxes; submit commands",
  keys: "make and revoke keys of this tenant; read its audit list",
  workers: "take tasks of all tenants; see workers and providers",
  "*": "everything, in all tenants",
};
/** For keys of the server's default tenant only. A caller that has one of them is of that tenant itself. */
const BEYOND_A_TENANT = new Set<string>(["workers", "*"]);
const DAY_SECONDS = 86_400;
const DEFAULT_LIFE = 90 * DAY_SECONDS;
const LIVES = [
  [7 * DAY_SECONDS, "in 7 days"],
  [DEFAULT_LIFE, "in 90 days"],
  [365 * DAY_SECONDS, "in 1 year"],
] as const;

/** Offers what the caller may give: scopes that it has, for no longer than its own key lasts. */
export function NewKeyForm({ tenant: shown, created }: { tenant?: string; created: (key: CreatedKey) => void }) {
  const may = useMay();
  const caller = useContext(CallerContext)!;
  const queries = useQueryClient();
  const [tenant, setTenant] = useState(shown ?? caller.tenant);
  const [left] = useState(() => (caller.expires_at === null ? Infinity : Date.parse(caller.expires_at) - serverTime()));
  const lives = LIVES.filter(([seconds]) => seconds * 1_000 < left);
  const tenants = useTenants();
  const create = useAction({
    // It returns nothing: TanStack Query would keep the key.
    mutationFn: async (form: FormData) => {
      const life = Number(form.get("life"));
      created(
        await body(
          api.POST("/v1/keys", {
            body: {
              name: String(form.get("name")),
              scopes: form.getAll("scope") as Scope[],
              ...(may("*") && { tenant }),
              ...(life > 0 && { expires_in_seconds: life }),
            },
          }),
        ),
      );
    },
    onSettled: () => {
      void queries.invalidateQueries({ queryKey: ["tenants"] });
      return queries.invalidateQueries({ queryKey: ["keys"] });
    },
  });
  return (
    <form
      className="filters panel"
      aria-label="New key"
      onSubmit={(event) => {
        event.preventDefault();
        create.mutate(new FormData(event.currentTarget));
      }}
    >
      <label>
        Name
        <input
          name="name"
          required
          autoFocus
          autoComplete="off"
          maxLength={64}
          pattern="[A-Za-z0-9_]([\-.]?[A-Za-z0-9_])*"
          title="letters, digits and _, with single - and . between them"
        />
      </label>
      {may("*") && (
        <label>
          Tenant
          <input
            name="tenant"
            list="tenants"
            required
            maxLength={64}
            pattern="[A-Za-z0-9_](-?[A-Za-z0-9_])*"
            title="letters, digits and _, with single - between them; a new name makes a new tenant"
            value={tenant}
            onChange={(event) => setTenant(event.target.value)}
          />
          <datalist id="tenants">
            {tenants.data?.map((name) => <option key={name} value={name} />)}
          </datalist>
        </label>
      )}
      <label>
        Expires
        <select name="life" defaultValue={lives.some(([seconds]) => seconds === DEFAULT_LIFE) ? DEFAULT_LIFE : ""}>
          {lives.map(([seconds, text]) => (
            <option key={seconds} value={seconds}>
              {text}
            </option>
          ))}
          <option value="">{left === Infinity ? "never" : `with your own key, in ${duration(left)}`}</option>
        </select>
      </label>
      <fieldset className="scopes">
        <legend>Scopes</legend>
        {Object.entries(SCOPES).map(
          ([scope, allows]) =>
            may(scope) &&
            (tenant === caller.tenant || !BEYOND_A_TENANT.has(scope)) && (
              <label key={scope}>
                <input type="checkbox" name="scope" value={scope} />
                <span>
                  <code>{scope}</code> <span className="why">{allows}</span>
                </span>
              </label>
            ),
        )}
      </fieldset>
      <button type="submit" className="primary" disabled={create.isPending}>
        {create.isPending ? "Creating…" : "Create"}
      </button>
      {create.error && <Trouble error={create.error} />}
    </form>
  );
}

/** The only place that ever has the key; it is gone when this is closed or the page is left. */
export function NewKey({ created, close }: { created: CreatedKey; close: () => void }) {
  const [said, setSaid] = useState("");
  useEffect(() => {
    window.addEventListener("pagehide", close); // the browser may keep the page to come back to it
    return () => window.removeEventListener("pagehide", close);
  }, [close]);
  return (
    <section className="panel" aria-label="The new key">
      <div className="section-head">
        <h2>The key {created.name}</h2>
        <button
          type="button"
          className="primary"
          autoFocus
          onClick={() =>
            navigator.clipboard.writeText(created.key).then(
              () => setSaid("Copied."),
              () => setSaid("The browser does not allow it: select the key and copy it."),
            )
          }
        >
          Copy
        </button>
        <button type="button" onClick={close}>
          Close
        </button>
      </div>
      <pre className="value secret">{created.key}</pre>
      <p className="hint">
        Copy it now: it is not shown again. <span role="status">{said}</span>
      </p>
      <Facts
        of={[
          ["Id", <span className="id">{created.id}</span>],
          ["Tenant", <Link href={keysAddress({ tenant: created.tenant })}>{created.tenant}</Link>],
          ["Expires", created.expires_at === null ? "never" : <Time at={created.expires_at} />],
        ]}
      />
    </section>
  );
}
