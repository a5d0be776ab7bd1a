import { useMutation, type UseMutationOptions, type UseMutationResult } from "@tanstack/react-query";
import { useRef } from "react";

/** A mutation that a double click begins once: until it has ended, further calls do nothing. */
export function useAction<Data = unknown, Given = void>(
  options: UseMutationOptions<Data, Error, Given>,
): Pick<UseMutationResult<Data, Error, Given>, "data" | "error" | "isPending"> & { mutate: (given: Given) => void } {
  const mutation = useMutation(options);
  const isBusy = useRef(false);
  const mutate = (given: Given) => {
    if (isBusy.current) return;
    isBusy.current = true;
    mutation.mutate(given, { onSettled: () => (isBusy.current = false) });
  };
  return { ...mutation, mutate };
}
