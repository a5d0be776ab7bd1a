import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { useAction } from "../api/action";
import { api } from "../api/client";
import { Trouble, useTitle } from "../parts";

export function SignInPage() {
  useTitle("Sign in");
  const [key, setKey] = useState("");
  const queries = useQueryClient();
  const signIn = useAction({
    mutationFn: () => api.POST("/v1/sign-in", { body: { key: key.trim() } }),
    onSuccess: () => {
      queries.removeQueries({ predicate: (query) => query.queryKey[0] !== "caller" }); // they may belong to another tenant
      return queries.invalidateQueries({ queryKey: ["caller"] });
    },
  });
  if (!window.isSecureContext) {
    return (
      <main className="sign-in">
        <h1>Fumehood</h1>
        <p role="alert" className="trouble">
          This page came over plain HTTP from another machine: others on the network could read a key sent from it. Use
          HTTPS, or a tunnel to <code>localhost</code>.
        </p>
      </main>
    );
  }
  return (
    <main className="sign-in">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          signIn.mutate();
        }}
      >
        <h1>Fumehood</h1>
        <input type="text" name="username" autoComplete="username" value="API key" readOnly hidden />
        <label htmlFor="key">API key</label>
        <input
          id="key"
          type="password"
          autoComplete="current-password"
          required
          autoFocus
          value={key}
          onChange={(event) => setKey(event.target.value)}
        />
        <button type="submit" className="primary" disabled={signIn.isPending}>
          Sign in
        </button>
        {signIn.error && <Trouble error={signIn.error} />}
        <p className="hint">
          A key comes from <code>fumehood key create</code>. The administrator’s token works, too.
        </p>
      </form>
    </main>
  );
}
