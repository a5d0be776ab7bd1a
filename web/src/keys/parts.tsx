import { useQuery } from "@tanstack/react-query";
import { useContext } from "react";
import { useSearchParams } from "wouter";

import { api, body } from "../api/client";
import { CallerContext, useMay } from "../caller";
import { oneLine, Trouble } from "../parts";

export const LOOK_MS = 5_000;

/** An address below this page with the parameters that have a value. */
export function keysAddress(parameters: Record<string, string | undefined>): string {
  const given = Object.entries(parameters).filter((one): one is [string, string] => Boolean(one[1]));
  return given.length > 0 ? `/keys?${new URLSearchParams(given)}` : "/keys";
}

/** All tenants, for those who may know them. */
export function useTenants() {
  const may = useMay();
  return useQuery({
    queryKey: ["tenants"],
    enabled: may("*"),
    queryFn: () => body(api.GET("/v1/tenants")),
    select: ({ tenants }) => tenants.map(({ tenant }) => tenant),
  });
}

/** Chooses the tenant in the address. The server shows another tenant than the caller's to the scope `*` only. */
export function TenantChoice({ view }: { view?: "audit" }) {
  const may = useMay();
  const caller = useContext(CallerContext)!;
  const [search, setSearch] = useSearchParams();
  const tenants = useTenants();
  if (!may("*")) return null;
  const shown = search.get("tenant") || caller.tenant;
  return (
    <>
      <select
        aria-label="Tenant"
        value={shown}
        onChange={({ target }) => setSearch({ ...(view && { view }), tenant: target.value })}
      >
        {[...new Set([...(tenants.data ?? []), shown])].map((name) => (
          <option key={name} value={name}>
            Tenant {oneLine(name)}
          </option>
        ))}
      </select>
      {tenants.error && <Trouble error={tenants.error} />}
    </>
  );
}

/** The name of a caller: `admin`, or the name of a key with its id, because several keys may have one name. */
export function Who({ name }: { name: string }) {
  const [, id, own] = /^([^/]*)\/(.*)$/s.exec(name) ?? [name, "", name];
  return (
    <>
      {oneLine(own!)}
      {id && <span className="why id">{oneLine(id)}</span>}
    </>
  );
}
