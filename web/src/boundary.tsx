import { Component, type ReactNode } from "react";

/** Replaces a page that failed, most likely because the server was upgraded while it was open. */
export class Boundary extends Component<{ children: ReactNode }, { failed: boolean }> {
  override state = { failed: false };

  static getDerivedStateFromError() {
    return { failed: true };
  }

  override render() {
    if (!this.state.failed) return this.props.children;
    return (
      <div role="alert">
        <h1>This page could not be shown</h1>
        <p>The server may have been upgraded since it was opened.</p>
        <button type="button" className="primary" onClick={() => window.location.reload()}>
          Reload
        </button>
      </div>
    );
  }
}
