import "./style.css";

import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Router } from "wouter";

import { isSignedOut, Problem } from "./api/client";
import { App } from "./app";

const queries: QueryClient = new QueryClient({
  queryCache: new QueryCache({
    // The key was revoked or the cookie has expired: asking for the caller again shows the sign-in page.
    onError: (error, query) => {
      if (isSignedOut(error) && query.queryKey[0] !== "caller") void queries.invalidateQueries({ queryKey: ["caller"] });
    },
  }),
  defaultOptions: {
    mutations: { networkMode: "always" },
    queries: {
      networkMode: "always", // a server on this machine can be reached without a network
      staleTime: 2_000,
      retry: (count, error) => count < 5 && !(error instanceof Problem && error.status >= 400 && error.status < 500),
    },
  },
});

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <Router base="/ui">
        <App />
      </Router>
    </QueryClientProvider>
  </StrictMode>,
);
