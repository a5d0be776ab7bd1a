import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useSearchParams } from "wouter";

import { useAction } from "../api/action";
import { api, body, type FileInfo, octets, Problem } from "../api/client";
import { useMay } from "../caller";
import { oneLine, size, Time, Trouble, useAddress } from "../parts";
import { save } from "../save";

const HOME = "/workspace";
const LOOK_MS = 5_000;
const MOST_SHOWN = 1_000;
const LARGEST_FILE = 256 * 1024 * 1024; // the most that the server takes, and that a browser should hold

const joined = (folder: string, name: string) => `${folder === "/" ? "" : folder}/${name}`;

/** The files of a sandbox, one folder at a time. The folder is in the address. */
export function Files({ sandbox }: { sandbox: string }) {
  const may = useMay();
  const queries = useQueryClient();
  const [search] = useSearchParams();
  const folder = search.get("folder") || HOME;
  const [all, setAll] = useState(false);
  const asked = {
    queryKey: ["files", sandbox, folder],
    queryFn: () => body(api.GET("/v1/sandboxes/{sandbox_id}/files/list", at(sandbox, folder))),
  };
  const list = useQuery({ ...asked, refetchInterval: LOOK_MS });
  const files = list.data?.files ?? [];
  const [progress, setProgress] = useState("");
  const act = useAction({
    mutationFn: (one: () => Promise<unknown>) => one(),
    onSettled: () => {
      setProgress("");
      return queries.invalidateQueries({ queryKey: asked.queryKey });
    },
  });

  const upload = (given: File[]) =>
    act.mutate(async () => {
      const large = given.find((file) => file.size > LARGEST_FILE);
      if (large) throw new Problem(0, `uploading ${oneLine(large.name)} failed: it is larger than ${size(LARGEST_FILE)}`);
      const known = new Set((await queries.fetchQuery({ ...asked, staleTime: 0 })).files.map(({ name }) => name));
      const replaced = given.filter(({ name }) => known.has(name)).map(({ name }) => oneLine(name));
      if (replaced.length > 0 && !window.confirm(`Replace ${replaced.join(", ")}?`)) return;
      for (const [place, file] of given.entries()) {
        setProgress(`Uploading ${oneLine(file.name)}, ${place + 1} of ${given.length}…`);
        const to = { ...at(sandbox, joined(folder, file.name)), ...octets(file) };
        await api.PUT("/v1/sandboxes/{sandbox_id}/files/content", to).catch((error: Error) => {
          throw new Problem(0, `uploading ${oneLine(file.name)} failed: ${error.message}`);
        });
      }
    });
  const download = ({ name }: FileInfo) =>
    act.mutate(async () => {
      setProgress(`Downloading ${oneLine(name)}…`);
      const from = { ...at(sandbox, joined(folder, name)), parseAs: "stream" as const };
      const { response } = await api.GET("/v1/sandboxes/{sandbox_id}/files/content", from);
      if (Number(response.headers.get("content-length")) > LARGEST_FILE) {
        await response.body?.cancel();
        throw new Problem(0, `the file is larger than ${size(LARGEST_FILE)}: copy it with fumehood session cp`);
      }
      const content = await response.blob().catch(() => {
        throw new Problem(0, `downloading ${oneLine(name)} broke off`);
      });
      save(content, name);
    });
  const remove = ({ name, kind }: FileInfo) => {
    const what = kind === "folder" ? `the folder ${oneLine(name)} and all that is in it` : oneLine(name);
    if (!window.confirm(`Delete ${what}?`)) return;
    act.mutate(() => {
      const { params } = at(sandbox, joined(folder, name));
      return api.DELETE("/v1/sandboxes/{sandbox_id}/files", {
        params: { ...params, query: { ...params.query, recursive: kind === "folder" } },
      });
    });
  };
  const makeFolder = () => {
    const name = window.prompt("Name of the new folder");
    if (name) act.mutate(() => api.POST("/v1/sandboxes/{sandbox_id}/files/folders", at(sandbox, joined(folder, name))));
  };

  const mayWrite = may("sandboxes:write");
  return (
    <section
      aria-label="Files"
      onDragOver={(event) => mayWrite && event.preventDefault()}
      onDrop={(event) => {
        if (!mayWrite) return;
        event.preventDefault();
        const items = [...event.dataTransfer.items].filter((item) => !item.webkitGetAsEntry()?.isDirectory);
        const dropped = items.map((item) => item.getAsFile()).filter((file) => file !== null);
        if (dropped.length > 0 && !act.isPending) upload(dropped);
      }}
    >
      <h2>Files</h2>
      <div className="files-head">
        <Folders folder={folder} />
        {mayWrite && (
          <>
            <label className="button">
              Upload
              <input
                type="file"
                multiple
                className="visually-hidden"
                disabled={act.isPending}
                onChange={(event) => {
                  upload([...(event.target.files ?? [])]);
                  event.target.value = ""; // the same file can be chosen again
                }}
              />
            </label>
            <button type="button" disabled={act.isPending} onClick={makeFolder}>
              New folder
            </button>
          </>
        )}
        <span role="status" className="hint">
          {progress}
        </span>
      </div>
      {(act.error ?? list.error) && <Trouble error={(act.error ?? list.error)!} />}
      {list.data && files.length === 0 && <p className="empty">This folder is empty.</p>}
      {files.length > 0 && (
        <table className="list">
          <thead>
            <tr>
              <th>Name</th>
              <th>Size</th>
              <th>Changed</th>
              <th>Mode</th>
              {mayWrite && <th aria-label="Delete" />}
            </tr>
          </thead>
          <tbody>
            {files.slice(0, all ? undefined : MOST_SHOWN).map((file) => (
              <tr key={file.name}>
                <td className="id">
                  {file.kind === "folder" ? (
                    <FolderLink folder={joined(folder, file.name)}>{oneLine(file.name)}/</FolderLink>
                  ) : file.kind === "file" ? (
                    <button type="button" className="plain" disabled={act.isPending} onClick={() => download(file)}>
                      {oneLine(file.name)}
                    </button>
                  ) : (
                    <>
                      {oneLine(file.name)} <span className="hint">{file.kind === "link" ? "link" : "special file"}</span>
                    </>
                  )}
                </td>
                <td>{file.kind === "file" ? size(file.size_bytes) : ""}</td>
                <td>
                  <Time at={file.modified_at} />
                </td>
                <td className="id">{file.mode}</td>
                {mayWrite && (
                  <td>
                    <button
                      type="button"
                      className="plain"
                      aria-label={`Delete ${oneLine(file.name)}`}
                      disabled={act.isPending}
                      onClick={() => remove(file)}
                    >
                      Delete
                    </button>
                  </td>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {!all && files.length > MOST_SHOWN && (
        <button type="button" onClick={() => setAll(true)}>
          Show all {files.length} entries
        </button>
      )}
      {list.data !== undefined && list.data.unnamed > 0 && (
        <p className="hint">Entries whose names are not UTF-8 and cannot be shown: {list.data.unnamed}.</p>
      )}
    </section>
  );
}

const at = (sandbox: string, path: string) => ({ params: { path: { sandbox_id: sandbox }, query: { path } } });

/** The folder and those above it, each a link. */
function Folders({ folder }: { folder: string }) {
  const parts = folder.split("/").filter((part) => part !== "");
  return (
    <nav aria-label="Folder" className="folders id">
      <FolderLink folder="/">/</FolderLink>
      {parts.map((part, place) => (
        <span key={place}>
          <FolderLink folder={`/${parts.slice(0, place + 1).join("/")}`}>{oneLine(part)}</FolderLink>/
        </span>
      ))}
    </nav>
  );
}

function FolderLink({ folder, children }: { folder: string; children: React.ReactNode }) {
  const address = useAddress();
  return <Link href={address("folder", folder)}>{children}</Link>;
}
