import "@xyflow/react/dist/base.css";

import { Graph as Layout, layout } from "@dagrejs/dagre";
import { type Edge, Handle, type Node, type NodeProps, Position, ReactFlow } from "@xyflow/react";
import { memo, useMemo, useSyncExternalStore } from "react";

import type { Step } from "../api/client";
import { oneLine, readable, Status } from "../parts";
import type { StepDefinition } from "./definition";

const WIDTH = 190;
const HEIGHT = 76;
const MARGIN = 32;
const HIGHEST = 460;
const NARROW = window.matchMedia("(max-width: 700px)");

type StepNode = Node<{ definition: StepDefinition; status?: string; items?: Step["items"]; narrow: boolean }, "step">;

/** The steps with their dependencies, and with their current states or, without a run, with what they do. */
export const StepGraph = memo(function StepGraph({
  definition,
  steps,
  chosen,
  choose,
}: {
  definition: StepDefinition[];
  steps?: Record<string, Step>;
  chosen?: string;
  choose: (step: string) => void;
}) {
  const narrow = useSyncExternalStore(watchWidth, () => NARROW.matches);
  const { places, height } = useMemo(() => placed(definition, narrow), [definition, narrow]);
  const nodes: StepNode[] = useMemo(
    () =>
      definition.map((one) => {
        const { id } = one;
        const status = steps && (steps[id]?.status ?? "pending");
        return {
          id,
          type: "step",
          position: places.get(id) ?? { x: 0, y: 0 },
          width: WIDTH,
          height: HEIGHT,
          measured: { width: WIDTH, height: HEIGHT }, // or a changed node is hidden until it is measured again
          data: { definition: one, status, items: steps?.[id]?.items, narrow },
          selected: id === chosen,
          ariaLabel: `Step ${id}, ${status ?? readable(one.kind)}`,
        };
      }),
    [definition, places, steps, chosen, narrow],
  );
  const edges: Edge[] = useMemo(
    () =>
      definition.flatMap(({ id, needs }) =>
        needs.map((need) => ({
          id: `${need}>${id}`,
          source: need,
          target: id,
          focusable: false,
          animated: steps?.[id]?.status === "running",
        })),
      ),
    [definition, steps],
  );
  return (
    <div className="graph" style={{ height: Math.min(height + 2 * MARGIN, HIGHEST) }}>
      <ReactFlow
        key={String(narrow)} // a new width lays out and fits the view again
        nodes={nodes}
        edges={edges}
        nodeTypes={NODES}
        fitView
        fitViewOptions={{ maxZoom: 1, padding: 0.1 }}
        minZoom={0.1}
        nodesDraggable={false}
        nodesConnectable={false}
        preventScrolling={false}
        zoomOnScroll={false}
        onNodesChange={(changes) => {
          const selected = changes.find((change) => change.type === "select" && change.selected);
          if (selected?.type === "select") choose(selected.id);
        }}
        aria-label="Steps"
      />
    </div>
  );
});

function watchWidth(changed: () => void): () => void {
  NARROW.addEventListener("change", changed);
  return () => NARROW.removeEventListener("change", changed);
}

/** From left to right, or on a narrow screen from top to bottom. */
function placed(definition: StepDefinition[], narrow: boolean) {
  const graph = new Layout().setGraph({ rankdir: narrow ? "TB" : "LR", nodesep: 24, ranksep: narrow ? 36 : 56 }).setDefaultEdgeLabel(() => ({}));
  for (const { id } of definition) graph.setNode(id, { width: WIDTH, height: HEIGHT });
  for (const { id, needs } of definition) for (const need of needs) graph.setEdge(need, id);
  layout(graph);
  const places = new Map(
    definition.map(({ id }) => {
      const { x, y } = graph.node(id) as { x: number; y: number };
      return [id, { x: x - WIDTH / 2, y: y - HEIGHT / 2 }];
    }),
  );
  return { places, height: (graph.graph() as { height: number }).height };
}

function StepBox({ data: { definition, status, items, narrow }, selected }: NodeProps<StepNode>) {
  const { id, kind, does } = definition;
  return (
    <div className={`step ${status ?? ""} ${selected ? "chosen" : ""}`}>
      <Handle type="target" position={narrow ? Position.Top : Position.Left} isConnectable={false} />
      <span className="line">
        <strong>{id}</strong>
        <span className="kind">{readable(kind)}</span>
      </span>
      {status ? <Status value={status} /> : <span className="does">{oneLine(does)}</span>}
      {items && <progress max={items.total} value={items.ended} aria-label={`${items.ended} of ${items.total} items`} />}
      <Handle type="source" position={narrow ? Position.Bottom : Position.Right} isConnectable={false} />
    </div>
  );
}

const NODES = { step: StepBox };
