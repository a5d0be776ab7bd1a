import type { Candidate, JobVerdict } from "../api/client";

const MOST_COMPARED = 4_000_000; // pairs of lines, in all comparisons of a job

/** JSON in lines, which also break where a text in it does: the output of a program is compared line by line. */
export const linesOf = (value: unknown): string[] =>
  (JSON.stringify(value, null, 2) ?? "")
    .replace(/\\.(?!")/g, (escape) => (escape === "\\n" ? "\\n\n" : escape))
    .split("\n");

/** An answer without what is said of how it was made, which is never compared. */
export function outputsOf({ provenance: _, ...outputs }: Record<string, unknown>): Record<string, unknown> {
  return outputs;
}

/** Whether two candidates declare the same, which is what the server compares. */
export const agree = (one: Candidate, other: Candidate): boolean =>
  one.declared_sha256 !== undefined && one.declared_sha256 === other.declared_sha256;

/**
 * The lines of each candidate's answer to mark, by their numbers: those that the chosen answer does not have, or,
 * where none was chosen, those that some other accepted answer does not have. Answers that agree are not compared.
 */
export function markedLines({ candidates, chosen }: JobVerdict): Map<Candidate, Set<number>> {
  const lines = new Map(candidates.map((one) => [one, linesOf(outputsOf(one.response ?? {}))]));
  const bases = candidates.filter(({ accepted, execution }) => accepted && (chosen ?? execution) === execution);
  const others = new Map(
    candidates.map((one) => [one, one.response ? bases.filter((base) => base !== one && !agree(one, base)) : []]),
  );
  const comparisons = [...others.values()].flat().length;
  const marked = (one: Candidate) =>
    others.get(one)!.flatMap((base) => changed(lines.get(one)!, lines.get(base)!, MOST_COMPARED / comparisons));
  return new Map(candidates.map((one) => [one, new Set(marked(one))]));
}

/**
 * The numbers of the lines that are not part of the longest common subsequence with the others; in very long texts of
 * those that the others have nowhere.
 */
function changed(lines: string[], others: string[], most: number): number[] {
  let start = 0;
  while (start < lines.length && start < others.length && lines[start] === others[start]) start++;
  let end = lines.length;
  let otherEnd = others.length;
  while (end > start && otherEnd > start && lines[end - 1] === others[otherEnd - 1]) {
    end--;
    otherEnd--;
  }
  const rows = end - start;
  const columns = otherEnd - start;
  const width = columns + 1;
  if (rows * columns > most) {
    const known = new Set(others);
    return [...lines.keys()].filter((number) => !known.has(lines[number]!));
  }

  // common[row * width + column]: how many lines the rest from this row and the rest from this column have in common
  const common = new Uint16Array((rows + 1) * width);
  for (let row = rows - 1; row >= 0; row--) {
    for (let column = columns - 1; column >= 0; column--) {
      const at = row * width + column;
      common[at] =
        lines[start + row] === others[start + column]
          ? common[at + width + 1]! + 1
          : Math.max(common[at + width]!, common[at + 1]!);
    }
  }
  const found: number[] = [];
  for (let row = 0, column = 0; row < rows; ) {
    const at = row * width + column;
    if (column < columns && lines[start + row] === others[start + column]) {
      row++;
      column++;
    } else if (column < columns && common[at + 1]! >= common[at + width]!) {
      column++;
    } else {
      found.push(start + row++);
    }
  }
  return found;
}
